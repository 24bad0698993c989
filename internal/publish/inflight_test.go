package publish_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestOneBatchInFlight: while a batch of a partition has no answer no other of that
// partition is at the broker, however many rows wait; another partition is not held.
func TestOneBatchInFlight(t *testing.T) {
	m := newModel("t", 1)
	m.grow("u", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.settle(time.Second) // so that the lanes are there
		hold := make(chan struct{})
		m.topics["t"][0].hold = hold
		for range 5 {
			r.put(3)
			r.settle(10 * time.Millisecond)
		}
		if got := r.requests(); got != 1 {
			t.Errorf("%d batches at the broker, want 1", got)
		}
		r.publish(r.record(100, "u", "key"))
		r.settle(10 * time.Millisecond)
		r.wantValues("u", 0, "100")
		close(hold)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14")
	})
}

// TestNoAttemptBeforeItsTime: while a broker refuses, or does not answer, the pauses
// between attempts double from retry_initial to retry_max, each drawn from the upper
// half, new rows do not shorten them, and after a success they start over.
func TestNoAttemptBeforeItsTime(t *testing.T) {
	const initial, most = 100 * time.Millisecond, 2 * time.Second
	for _, f := range []fault{notLeader, noBroker, answerLost} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			m := newModel("t", 1)
			run(t, publish.Config{RetryInitial: initial, RetryMax: most}, m, func(r *rig) {
				for range 2 {
					m.mu.Lock()
					m.topics["t"][0].faults = repeat(f, 12)
					m.mu.Unlock()
					attempts := r.attempts(20 * time.Second)
					if len(attempts) != 13 {
						t.Fatalf("%d attempts, want 13", len(attempts))
					}
					for i, at := range attempts[1:] {
						pause, limit := at-attempts[i], min(initial<<i, most)
						if pause < limit/2 || pause > limit+5*time.Millisecond {
							t.Errorf("attempt %d comes %v after the one before it, want %v to %v", i+2, pause, limit/2, limit)
						}
					}
				}
			})
		})
	}
}

// attempts puts a row and returns when the requests up to its success were sent,
// within d, while another row comes every now and then.
func (r *rig) attempts(d time.Duration) []time.Duration {
	r.t.Helper()
	var at []time.Duration
	before := r.requests()
	r.put(1)
	for start := time.Now(); time.Since(start) < d; r.settle(time.Millisecond) {
		if n := r.requests(); n > before {
			at, before = append(at, time.Since(start)), n
		}
		if len(at) > 0 && len(at) < 12 && time.Since(start)%(50*time.Millisecond) == 0 {
			r.put(1)
		}
	}
	return at[:min(len(at), 13)] // what was put meanwhile leaves right behind them
}

// TestOldestIsOfTheSlowestLane: of all partitions and topics the one that is furthest
// behind counts.
func TestOldestIsOfTheSlowestLane(t *testing.T) {
	m := newModel("t", 2)
	m.grow("u", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(1)
		r.publish(r.record(1, "u", "key"))
		r.drain(time.Second) // so that the lanes are there
		hold := make(chan struct{})
		m.topics["t"][0].hold, m.topics["t"][1].hold, m.topics["u"][0].hold = hold, hold, hold
		for i, row := range []struct{ topic, key string }{
			{"t", "key0"}, {"t", "key1"}, {"u", "key0"}, {"t", "key2"}, {"t", "key3"}, {"t", "key4"},
		} {
			r.publish(r.record(2+i, row.topic, row.key))
			r.settle(time.Millisecond) // the first row of each lane is sent
			if got := r.oldest(); got != 3 {
				t.Errorf("oldest = %d, want 3", got)
			}
		}
		close(hold)
		r.drain(time.Minute)
		if r.values("t", 0) == "" || r.values("t", 1) == "" {
			t.Error("the keys do not cover both partitions")
		}
	})
}

// TestLateRequestKeepsItsBytes: a transport may still read a batch whose request has
// ended without an answer, so the memory of its rows goes to no other rows, not even
// when the batch has been acknowledged.
func TestLateRequestKeepsItsBytes(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		for range 100 {
			m.mu.Lock()
			m.topics["t"][0].faults = []fault{answerLost}
			m.mu.Unlock()
			r.put(5)
			r.drain(time.Minute)
		}
		if got := strings.Count(r.values("t", 0), " "); got != 499 {
			t.Errorf("%d records, want 500", got+1)
		}
	}) // The rig compares what was sent then with what the batch holds now.
}
