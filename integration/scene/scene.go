// Package scene gives a test an outbox table and a relay, and says what is confirmed.
package scene

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/kafkaadmin"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Patience is how long something may take that is bound to happen.
const Patience = 40 * time.Second

// Scene is one test's database with the table public.outbox, its topics and its relay.
type Scene struct {
	*testenv.Env
	*kafkaadmin.Admin

	t    testing.TB
	conn *pgx.Conn
}

// New makes a scene on a Kafka cluster.
func New(t testing.TB, brokers []string) *Scene {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = brokers
	env.Exec(`CREATE TABLE public.outbox
		(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregatetype text, aggregateid text, payload text)`)
	return &Scene{Env: env, Admin: kafkaadmin.New(t, brokers), t: t, conn: env.Conn()}
}

// Start runs a relay that creates what is missing in Postgres, and waits until it is ready.
func (s *Scene) Start(settings testenv.Settings) *testenv.Relay {
	s.t.Helper()
	r := s.StartRelay(testenv.RelayOptions{Settings: settings, Args: []string{"--init"}})
	r.WaitReady(Patience)
	return r
}

// Stop ends the relay in order.
func (s *Scene) Stop(r *testenv.Relay) {
	s.t.Helper()
	if code := r.Stop(Patience); code != 0 {
		s.t.Errorf("relay exits with %d after SIGTERM, want 0", code)
	}
}

// Insert commits rows in one transaction and returns a WAL position within it: one that the slot passes only when the
// rows are confirmed.
func (s *Scene) Insert(kind, key string, values ...string) (within string) {
	s.t.Helper()
	err := s.conn.QueryRow(s.t.Context(), `WITH rows AS (
		INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT $1, $2, v FROM unnest($3::text[]) WITH ORDINALITY AS u (v, n) ORDER BY n RETURNING id)
		SELECT pg_current_wal_insert_lsn()::text FROM (SELECT count(*) FROM rows) AS done`, kind, key, values).Scan(&within)
	if err != nil {
		s.t.Fatal(err)
	}
	return within
}

// passed says whether the slot's confirmed position is beyond one that Insert has returned.
func (s *Scene) passed(within string) (ok bool) {
	s.t.Helper()
	if err := s.conn.QueryRow(s.t.Context(), `SELECT confirmed_flush_lsn > $1::pg_lsn FROM pg_replication_slots
		WHERE slot_name = $2`, within, s.Slot).Scan(&ok); err != nil {
		s.t.Fatal(err)
	}
	return ok
}

// Held fails the test when the slot has passed what must not be confirmed.
func (s *Scene) Held(within string) {
	s.t.Helper()
	if s.passed(within) {
		s.t.Errorf("the slot has passed %s, whose rows are not on their topic", within)
	}
}

// Settled waits until the slot has passed what Insert has returned.
func (s *Scene) Settled(within string) {
	s.t.Helper()
	s.SettledIn(Patience, within)
}

// SettledIn is [Scene.Settled] with a limit.
func (s *Scene) SettledIn(limit time.Duration, within string) {
	s.t.Helper()
	testenv.Until(s.t, limit, func(context.Context) error {
		if !s.passed(within) {
			return fmt.Errorf("the slot has not passed %s", within)
		}
		return nil
	})
}

// Reason waits until /readyz is 503 and its text holds all of want.
func Reason(t testing.TB, r *testenv.Relay, want ...string) {
	t.Helper()
	testenv.Until(t, Patience, func(ctx context.Context) error {
		status, text, err := r.Get(ctx, "/readyz")
		if err == nil && status != 503 {
			err = fmt.Errorf("/readyz answers %d", status)
		}
		for _, w := range want {
			if err == nil && !strings.Contains(text, w) {
				err = fmt.Errorf("/readyz does not say %q: %s", w, text)
			}
		}
		return err
	})
}

// Metric is the sum of a metric's samples, 0 without any.
func Metric(t testing.TB, r *testenv.Relay, name string) (sum float64) {
	t.Helper()
	_, body, err := r.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += value
	}
	return sum
}

// Counted are the numbers from from to to as text.
func Counted(from, to int) []string {
	var out []string
	for n := from; n <= to; n++ {
		out = append(out, strconv.Itoa(n))
	}
	return out
}

// Values returns the record values in order.
func Values(records []testenv.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r.Value)
	}
	return out
}

// Firsts are the values of first copies, in order.
func Firsts(records []testenv.Record) []string {
	var out []string
	seen := map[string]bool{}
	for _, r := range records {
		if id, _ := r.Header("id"); !seen[id] {
			seen[id] = true
			out = append(out, string(r.Value))
		}
	}
	return out
}
