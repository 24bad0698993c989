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

// Insert commits rows in one transaction and returns the end of the WAL right after: for Held and Settled.
func (s *Scene) Insert(kind, key string, values ...string) (after string) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), `INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT $1, $2, v FROM unnest($3::text[]) WITH ORDINALITY AS u (v, n) ORDER BY n`, kind, key, values); err != nil {
		s.t.Fatal(err)
	}
	if err := s.conn.QueryRow(s.t.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&after); err != nil {
		s.t.Fatal(err)
	}
	return after
}

// reached says whether the slot's confirmed position is at least one that Insert has returned, less a margin.
func (s *Scene) reached(after string, margin int) (ok bool) {
	s.t.Helper()
	if err := s.conn.QueryRow(s.t.Context(), `SELECT confirmed_flush_lsn >= $1::pg_lsn - $2::int FROM pg_replication_slots
		WHERE slot_name = $3`, after, margin, s.Slot).Scan(&ok); err != nil {
		s.t.Fatal(err)
	}
	return ok
}

// Held fails the test when the slot has reached what must not be confirmed. Before it, among the rows and up to their
// commit, the slot may be anywhere: what the server has sent ended there once.
func (s *Scene) Held(after string) {
	s.t.Helper()
	if s.reached(after, 0) {
		s.t.Errorf("the slot has reached %s, and the rows before it are not on their topic", after)
	}
}

// Settled waits until the slot has reached what Insert has returned.
func (s *Scene) Settled(after string) {
	s.t.Helper()
	s.SettledIn(Patience, after)
}

// SettledIn is [Scene.Settled] with a limit.
func (s *Scene) SettledIn(limit time.Duration, after string) {
	s.t.Helper()
	// The end of a commit lies before the head of a new page, the next byte to insert behind it.
	const pageHead = 40
	testenv.Until(s.t, limit, func(context.Context) error {
		if !s.reached(after, pageHead) {
			return fmt.Errorf("the slot has not reached %s", after)
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
