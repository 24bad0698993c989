package checker_test

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestWithHonestAndDishonestRelay plays the relay by hand: right at first, then confirming what it has not sent.
func TestWithHonestAndDishonestRelay(t *testing.T) {
	env, c := setUp(t, checker.Config{Keys: 10, Transactions: 50, Rollbacks: 0.2, Padding: 10, Seed: 1})
	watched, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { c.Watch(watched, 10*time.Millisecond) })
	defer watching.Wait()
	defer stop()
	write(t, c)
	if got := report(t, c); got.Missing != got.Committed || got.Committed < 100 {
		t.Errorf("before anything is sent: %v", got)
	}

	relay := relay{env: env, t: t}
	relay.send()
	relay.confirm()
	sample(t, c)
	if got := report(t, c); !got.OK() || got.Samples == 0 || int64(got.Records) != got.Committed {
		t.Errorf("after all is sent: %v", got)
	}

	write(t, c)
	relay.confirm()
	sample(t, c)
	relay.send()
	if got := report(t, c); got.Early == 0 || got.Missing+int64(got.Foreign+got.OutOfOrder) != 0 {
		t.Errorf("after an early confirmation: %v", got)
	}
}

// setUp makes the outbox and its topics.
func setUp(t *testing.T, cfg checker.Config) (*testenv.Env, *checker.Checker) {
	t.Helper()
	env := testenv.New(t)
	env.Exec(`CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb,
		seq bigint GENERATED ALWAYS AS IDENTITY)`)
	env.Exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", env.Slot)
	env.CreateTopic("order", 3)
	env.CreateTopic("invoice", 2)
	cfg.URL, cfg.Slot, cfg.Brokers, cfg.TopicPrefix, cfg.Types = env.URL, env.Slot, env.Brokers, env.Prefix, []string{"order", "invoice"}
	c, err := checker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return env, c
}

// TestDeadLetters plays a relay that keeps dead letters, and loses some. The table is as the relay's, as far as the checker
// looks at it.
func TestDeadLetters(t *testing.T) {
	env, c := setUp(t, checker.Config{Keys: 5, Transactions: 30, Padding: 10, Seed: 1, Poison: 5, PoisonBytes: 1000})
	env.Exec(`CREATE TABLE cdc_relay_dead_letter (id bigint GENERATED ALWAYS AS IDENTITY, slot text, message_id bytea, commit_lsn pg_lsn,
		record_key bytea, value bytea, state text DEFAULT 'dead', reason text DEFAULT 'invalid_topic', replays int DEFAULT 0,
		may_be_published boolean DEFAULT false, created_at timestamptz DEFAULT now())`)
	write(t, c)
	env.Exec(`INSERT INTO cdc_relay_dead_letter (slot, message_id, commit_lsn, record_key, value)
		SELECT $1, id::text::bytea, '0/1', aggregateid::bytea, convert_to(payload::text, 'UTF8') FROM outbox WHERE payload->>'poison' = 'true'`, env.Slot)
	large := env.Text(`SELECT count(*) FROM outbox WHERE length(payload->>'padding') = 1000 AND aggregatetype NOT LIKE '%?'`)
	relay := relay{env: env, t: t}
	relay.send()
	relay.confirm()
	sample(t, c)
	got := report(t, c)
	if !got.OK() || got.Letters < 20 || int64(got.Records+got.Letters) != got.Committed || large == "0" {
		t.Errorf("after all is sent or refused: %v, %s of the letters are large", got, large)
	}
	env.Exec(`UPDATE cdc_relay_dead_letter SET state = 'replayed', replays = 1 WHERE id = 1`)
	if got := report(t, c); got.Missing != 1 || len(got.Faults) != 1 {
		t.Errorf("after a replay that is not sent: %v", got)
	}
	env.Exec(`UPDATE cdc_relay_dead_letter SET state = 'dead', replays = 0 WHERE id = 1`)
	env.Exec(`DELETE FROM cdc_relay_dead_letter WHERE id = 2`)
	if got := report(t, c); got.Missing != 1 || len(got.Faults) != 1 {
		t.Errorf("without a letter that was there: %v", got)
	}
}

func write(t *testing.T, c *checker.Checker) {
	t.Helper()
	if err := c.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func sample(t *testing.T, c *checker.Checker) {
	t.Helper()
	if err := c.Sample(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func report(t *testing.T, c *checker.Checker) checker.Report {
	t.Helper()
	got, err := c.Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// relay sends the rows that it has not sent, in the order of their numbers.
type relay struct {
	env  *testenv.Env
	t    *testing.T
	sent int64
}

func (r *relay) send() {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.env.Brokers...))
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	rows, err := r.env.Conn().Query(r.t.Context(), `SELECT id::text, aggregatetype, aggregateid, payload, seq FROM outbox
		WHERE seq > $1 AND payload->>'poison' = 'false' ORDER BY (payload->>'number')::bigint`, r.sent)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, kind, key string
		var payload json.RawMessage
		var seq int64
		if err := rows.Scan(&id, &kind, &key, &payload, &seq); err != nil {
			r.t.Fatal(err)
		}
		r.sent = max(r.sent, seq)
		record := &kgo.Record{
			Topic: r.env.Topic(kind), Key: []byte(key), Value: payload, Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
		}
		client.Produce(r.t.Context(), record, nil)
	}
	if rows.Err() != nil {
		r.t.Fatal(rows.Err())
	}
	if err := client.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *relay) confirm() {
	r.t.Helper()
	r.env.Exec("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", r.env.Slot)
}
