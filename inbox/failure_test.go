package inbox

import (
	"testing"
	"time"
)

// An outage ends once: when the database answers and nothing has failed for a while. A
// server that is shutting down fails some and answers others.
func TestOutage(t *testing.T) {
	start := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	var o outage
	if _, n := o.answers(at(0)); n != 0 {
		t.Fatalf("%d failures before there was one", n)
	}
	fails := func(now, wantSince time.Duration, wantFirst bool) {
		t.Helper()
		if since, first := o.fails(at(now)); !since.Equal(at(wantSince)) || first != wantFirst {
			t.Errorf("at %v: since %v, first %v; want %v, %v", now, since.Sub(start), first, wantSince, wantFirst)
		}
	}
	answers := func(now time.Duration, want int) {
		t.Helper()
		if since, n := o.answers(at(now)); n != want || n > 0 && !since.Equal(at(time.Second)) {
			t.Errorf("at %v: %d failures since %v; want %d", now, n, since.Sub(start), want)
		}
	}
	fails(time.Second, time.Second, true)
	answers(time.Second+5*time.Millisecond, 0)
	fails(time.Second+6*time.Millisecond, time.Second+5*time.Millisecond, false) // the back-off begins anew
	answers(time.Second+7*time.Millisecond, 0)
	fails(3*time.Second, time.Second+7*time.Millisecond, false)
	answers(3900*time.Millisecond, 0)
	answers(4*time.Second, 3)
	answers(5*time.Second, 0)
	fails(6*time.Second, 6*time.Second, true)
}
