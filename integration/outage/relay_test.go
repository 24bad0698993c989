package outage_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A relay that is killed twenty times under load loses nothing and keeps the order of first copies.
func TestKills(t *testing.T) {
	l := newLoad(t, nil, checker.Config{Keys: 200, MaxRows: 50, Rollbacks: 0.1, Writers: 3, Pause: time.Millisecond, Seed: 5})
	for range 20 {
		sent := metric(t, l.relay, "cdc_relay_messages_received_total")
		testenv.Until(t, patience, func(context.Context) error {
			if metric(t, l.relay, "cdc_relay_messages_received_total") == sent {
				return fmt.Errorf("no row since the start")
			}
			return nil
		})
		l.relay.Kill()
		l.relay = l.start(nil)
	}
	l.judge()
	if code := l.relay.Stop(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// A stop in a large transaction ends in time; the transaction is read again whole, and all of it is on the topic.
func TestStopInLargeTransaction(t *testing.T) {
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	settings := testenv.Settings{"shutdown_timeout": "1500ms", "limits.in_flight_bytes": "256KiB"}
	r := env.StartRelay(testenv.RelayOptions{Settings: settings, Args: []string{"--init"}})
	r.WaitReady(patience)
	const rows = 60_000
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
		SELECT 'order', 'k', 'T', jsonb_build_object('n', g, 'filler', repeat('x', 500)) FROM generate_series(1, $1::int) g`, rows)
	env.Consume(topic, 1, patience) // on its way
	if code := r.Stop(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	before := len(env.Consume(topic, 1, patience))
	r = env.StartRelay(testenv.RelayOptions{Settings: settings})
	r.WaitReady(patience)
	var numbers []int
	total := rows // and one more for each copy beyond the first
	for len(numbers) < rows {
		got := env.Consume(topic, total, time.Minute)
		numbers = firsts(t, got)
		total = rows + len(got) - len(numbers)
	}
	t.Logf("%d records for %d rows; at least %d before the stop", total, rows, before)
	for i, n := range numbers {
		if n != i+1 {
			t.Fatalf("first copy number %d is row %d", i+1, n)
		}
	}
	r.Stop(patience)
}

// firsts returns the numbers of the rows in the order of their first copies.
func firsts(t *testing.T, records []testenv.Record) (numbers []int) {
	seen := map[string]bool{}
	for _, rec := range records {
		id, _ := rec.Header("id")
		if seen[id] {
			continue
		}
		seen[id] = true
		var n int
		if _, err := fmt.Sscanf(string(rec.Value), `{"n": %d,`, &n); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// A stop with nothing to do is immediate and leaves the slot free.
func TestStopIdle(t *testing.T) {
	env := testenv.New(t)
	r := env.StartRelay(testenv.RelayOptions{Args: []string{"--init"}})
	r.WaitReady(patience)
	began := time.Now()
	if code := r.Stop(5 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	var active bool
	if err := env.Conn().QueryRow(t.Context(), `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, env.Slot).Scan(&active); err != nil || active {
		t.Errorf("slot active: %v (%v)", active, err)
	}
}
