package regress_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// plain is a relay that does not look at the topics for what it has sent: it would skip what comes again.
var plain = testenv.Settings{"resume.enabled": false}

// After a clean stop nothing comes again: not the last transaction when the database is idle, not what was acknowledged
// a moment before.
func TestCleanStops(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	const idle, busy = 10, 1000
	for n := range idle {
		r := s.Start(plain)
		s.Settled(s.insert(n+1, n+1, 0))
		s.Stop(r)
	}
	r := s.Start(plain)
	s.insert(idle+1, idle+busy, 0)
	s.Consume(topic, idle+busy, patience)
	s.Stop(r)
	r = s.Start(plain)
	s.insert(idle+busy+1, idle+busy+1, 0)
	s.once(topic, idle+busy+1)
	s.Stop(r)
}

// A transaction is confirmed whole or not at all: killed in the middle of one, the relay sends it again from its first
// row, and nothing else.
func TestKilledInTransaction(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	settings := testenv.Settings{"limits.in_flight_bytes": "256KiB", "resume.enabled": false}
	r := s.Start(settings)
	const before, rows = 100, 40_000
	s.Settled(s.insert(1, before, 0))
	within := s.insert(before+1, before+rows, 200)
	s.Consume(topic, before+rows/4, patience)
	r.Kill()
	s.Held(within)
	sent := len(s.Consume(topic, before+rows/4, patience)) - before
	if sent >= rows {
		t.Fatal("the relay was killed too late")
	}
	r = s.Start(settings)
	s.Settled(within)
	again := s.firsts(topic, before+rows)
	t.Logf("%d of %d rows had been sent, %d came again", sent, rows, len(again))
	for _, n := range again {
		if n <= before {
			t.Errorf("row %d came again, which was confirmed before", n)
		}
	}
	s.Stop(r)
}

// A backlog is confirmed while it is read, not at its end: a relay that dies in the middle goes on in the middle. Its
// memory is bounded.
func TestBacklog(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	rows := 30_000 * *scale
	settings := testenv.Settings{"limits.in_flight_bytes": "1MiB", "resume.enabled": false}
	s.Stop(s.Start(settings))
	s.Exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN 0..%d LOOP
		INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
			SELECT 'order', 'k', g || repeat('x', 1000) FROM generate_series(i * 10 + 1, i * 10 + 10) g;
		COMMIT; END LOOP; END $$`, rows/10-1))
	r := s.StartRelay(testenv.RelayOptions{Settings: settings, Plain: true})
	s.Consume(topic, rows/2, patience)
	first := resident(t, r)
	r.Kill()
	r = s.StartRelay(testenv.RelayOptions{Settings: settings, Plain: true})
	again := s.firsts(topic, rows)
	t.Logf("%d of %d rows came again", len(again), rows)
	if len(again) > rows/10 {
		t.Errorf("%d of %d rows came again: the backlog began anew", len(again), rows)
	}
	const limit = 64 << 10
	for _, kib := range []int{first, resident(t, r)} {
		if kib > limit {
			t.Errorf("peak memory is %d KiB, want at most %d", kib, limit)
		}
	}
	s.Stop(r)
}

// resident is the kernel's high-water mark of the relay's memory, in KiB.
func resident(t *testing.T, r *testenv.Relay) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(line, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// A slot that is not where the relay has left it is where the relay goes on; the confirmed position never goes back, and
// what was passed over is said.
func TestSlotMovedBySomebodyElse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		move string // SQL; SLOT stands for the name
		gap  bool
	}{
		"advanced": {`SELECT pg_replication_slot_advance('SLOT', pg_current_wal_lsn())`, true},
		"drained": {`SELECT count(*) FROM pg_logical_slot_get_binary_changes('SLOT', NULL, NULL,
			'proto_version', '1', 'publication_names', 'SLOT')`, true},
		"behind what is recorded": {`UPDATE public.cdc_relay_slots SET confirmed = 'FFFF/0'`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			topic := s.CreateTopic("order", 1)
			r := s.Start(plain)
			s.Settled(s.insert(1, 1, 0))
			s.Stop(r)
			left := s.OfSlot("confirmed_flush_lsn")
			s.insert(2, 11, 0)
			s.Exec(strings.ReplaceAll(tt.move, "SLOT", s.Slot))
			moved := s.OfSlot("confirmed_flush_lsn")
			s.insert(12, 12, 0)
			r = s.Start(plain)
			want := scene.Counted(1, 12)
			if tt.gap {
				want = []string{"1", "12"}
				r.WaitOutput("from "+left+", where cdc-relay had stopped, to "+moved, patience)
			}
			testenv.Until(t, patience, func(context.Context) error {
				if s.Value(`SELECT (confirmed_flush_lsn < $1::pg_lsn)::text FROM pg_replication_slots WHERE slot_name = $2`, moved, s.Slot) == "true" {
					t.Fatal("the slot has gone back")
				}
				if got := scene.Values(s.Consume(topic, len(want), patience)); !slices.Equal(got, want) {
					return fmt.Errorf("rows %v, want %v", got, want)
				}
				return nil
			})
			s.Stop(r)
		})
	}
}
