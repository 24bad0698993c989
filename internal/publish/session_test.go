package publish_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestReconnectRepeatsNothing: rows that the server sends again and the lane has
// settled are settled at once.
func TestReconnectRepeatsNothing(t *testing.T) {
	run(t, publish.Config{}, newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.begin()
		r.replay(0)
		r.put(2)
		r.drain(time.Second)
		r.wantValues("t", 0, "0 1 2 3 4 5 6")
	})
}

// TestWrittenBatchOutlivesItsSession: what was written is repeated before anything
// else, settles no row of the next session by number, and is not sent by it again.
func TestWrittenBatchOutlivesItsSession(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = []fault{requestLost, notLeader, answerLost}
	run(t, publish.Config{}, m, func(r *rig) {
		m.latency = 20 * time.Millisecond
		r.putBatch(3)
		r.settle(30 * time.Millisecond)
		r.put(2) // Queued behind the batch that is undecided now.
		r.p.End()
		if _, any := r.p.Oldest(); any {
			t.Error("a row is unsettled without a session")
		}
		r.begin()
		if _, any := r.p.Oldest(); any {
			t.Error("a row of the past session shows in the new one")
		}
		r.replay(1)
		if got := r.oldest(); got != 1 {
			t.Errorf("oldest = %d, want 1", got)
		}
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2 3 4")
	})
}

// TestUnwrittenRowsAreDropped: what was queued, or refused before it was written,
// ends with its session.
func TestUnwrittenRowsAreDropped(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = repeat(noBroker, 3)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(3)
		r.settle(20 * time.Millisecond)
		r.p.End()
		r.settle(time.Minute)
		if s := r.p.Snapshot(); s.Rows != 0 || s.Bytes != 0 || len(s.Lanes) != 0 {
			t.Errorf("left behind: %+v", s)
		}
		r.begin()
		r.replay(2)
		r.drain(time.Minute)
		r.wantValues("t", 0, "2")
	})
}

// TestNotAlive: a lane asks right before it writes a new batch, and a batch that was
// written is repeated all the same.
func TestNotAlive(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.alive.Store(false)
		r.put(2)
		r.settle(time.Minute)
		if r.requests() != 0 {
			t.Error("a batch was written though the session is not alive")
		}
		r.alive.Store(true)
		r.drain(time.Second)
		m.mu.Lock()
		m.topics["t"][0].faults = []fault{requestLost, requestLost}
		m.mu.Unlock()
		r.put(1)
		r.settle(5 * time.Millisecond)
		r.alive.Store(false)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2")
	})
}

// TestLostWhileSealing: the last look is right before the first byte.
func TestLostWhileSealing(t *testing.T) {
	run(t, publish.Config{}, newModel("t", 1), func(r *rig) {
		var loses atomic.Bool
		var asked atomic.Int64
		r.session.Alive = func() bool { return !loses.Load() || asked.Add(1) == 1 }
		r.begin()
		r.put(1)
		r.drain(time.Second) // From here on the lane has a producer id, and asks only for what it writes.
		before := r.requests()
		loses.Store(true)
		r.put(1)
		r.settle(time.Second)
		if n := r.requests() - before; n != 0 || asked.Load() < 2 {
			t.Errorf("%d requests after asking %d times", n, asked.Load())
		}
	})
}

// TestOtherHistory: after a change of identity rows at the same positions are other
// rows.
func TestOtherHistory(t *testing.T) {
	tests := map[string]func(s *publish.Session){
		"system":      func(s *publish.Session) { s.SystemID = "other" },
		"timeline":    func(s *publish.Session) { s.Timeline++ },
		"history":     func(s *publish.Session) { s.History++ },
		"fingerprint": func(s *publish.Session) { s.Fingerprint++ },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			m := newModel("t", 1)
			run(t, publish.Config{}, m, func(r *rig) {
				r.put(3) // Positions 1000 to 1002.
				r.drain(time.Second)
				change(&r.session)
				r.begin()
				r.replay(1)
				r.drain(time.Second)
				r.wantValues("t", 0, "0 1 2 1 2")
			})
		})
	}
	t.Run("same, WAL end reached", func(t *testing.T) {
		run(t, publish.Config{}, newModel("t", 1), func(r *rig) {
			r.put(3)
			r.drain(time.Second)
			r.session.WALEnd = 1003
			r.begin()
			r.replay(1)
			r.drain(time.Second)
			r.wantValues("t", 0, "0 1 2")
			r.wantNoReset()
		})
	})
}

// TestRestoredWhileTheProcessLives: the server comes back with the same identity and
// other rows at the positions that were acknowledged. They are published, behind an
// alarm, however far the server's log has come by then.
func TestRestoredWhileTheProcessLives(t *testing.T) {
	other := func(r *rig, i int) *publish.Record {
		record := r.record(i, "t", "key")
		record.ID = []byte("other-" + strconv.Itoa(i))
		record.Value = []byte("other" + strconv.Itoa(i))
		return record
	}
	for name, tc := range map[string]struct {
		walEnd pglogrepl.LSN
		rows   []int
		reason string
	}{
		"log not so far":    {1002, nil, "the server's log ended at 0/3EA when the slot was acquired"},
		"another row":       {2000, []int{1, 2, 3}, "the server's row there is another one"},
		"a row beyond":      {2000, []int{1, 5}, "the server sent the row at 0/3ED/0/9/r0 first"},
		"nothing more came": {2000, []int{1}, "the server has sent everything up to 0/7D0 without it"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, publish.Config{}, newModel("t", 1), func(r *rig) {
				r.put(3) // Positions 1000 to 1002.
				r.drain(time.Second)
				r.session.WALEnd = tc.walEnd
				r.begin()
				for _, i := range tc.rows {
					r.publish(other(r, i))
				}
				if len(tc.rows) > 0 {
					if oldest, any := r.p.Oldest(); !any || oldest != 1 {
						t.Errorf("Oldest = %d, %t", oldest, any)
					}
					r.p.Passed(2000)
				}
				r.wantHistoryError(tc.reason)
				r.session.History++
				r.session.WALEnd = 2000
				r.begin()
				want := "0 1 2"
				for _, i := range tc.rows {
					r.publish(other(r, i))
					want += " other" + strconv.Itoa(i)
				}
				r.drain(time.Minute)
				r.wantValues("t", 0, want)
			})
		})
	}
}

// TestUndecidedOfOtherHistory: a batch written before the history changed is brought
// to a decision, but its position settles nothing.
func TestUndecidedOfOtherHistory(t *testing.T) {
	for name, change := range map[string]func(s *publish.Session){
		"timeline": func(s *publish.Session) { s.Timeline++ },
		"history":  func(s *publish.Session) { s.History++ },
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel("t", 1)
			m.topics["t"][0].faults = []fault{answerLost}
			run(t, publish.Config{}, m, func(r *rig) {
				r.putBatch(3) // Positions 1000 to 1002, undecided.
				r.settle(2 * time.Millisecond)
				change(&r.session)
				r.begin()
				r.publish(r.record(0, "t", "key"))
				// The row at position 1001 of the new history is another one.
				other := r.record(1, "t", "key")
				other.Value = []byte("other")
				r.publish(other)
				r.drain(time.Minute)
				r.wantValues("t", 0, "0 1 2 0 other")
			})
		})
	}
}

func TestPublishWithoutSession(t *testing.T) {
	run(t, publish.Config{}, newModel("t", 1), func(r *rig) {
		r.p.End()
		r.p.End()
		if err := r.p.Publish(r.ctx, r.record(0, "t", "k")); !errors.Is(err, publish.ErrSessionOver) {
			t.Errorf("Publish = %v, want ErrSessionOver", err)
		}
	})
}

// TestBudget: Publish waits when a lane holds its share, says so, and ends the wait
// when the session or the context ends.
func TestBudget(t *testing.T) {
	const budget = 1 << 20
	m := newModel("t", 1)
	run(t, publish.Config{InFlightBytes: budget}, m, func(r *rig) {
		hold := make(chan struct{}) // Made here: the bubble's clock waits for other channels.
		m.topics["t"][0].hold = hold
		var waits []bool
		r.session.Blocked = func(b bool) { waits = append(waits, b) }
		r.begin()
		r.put(1) // The topic is known from here on.
		r.settle(time.Millisecond)
		over := func(ctx context.Context) error {
			for {
				rec := r.record(r.n, "t", "key")
				rec.Value = make([]byte, 1000)
				r.seq++
				rec.Seq = r.seq
				if err := r.p.Publish(ctx, rec); err != nil {
					return err
				}
				r.n++
			}
		}
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		if err := over(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Publish = %v, want the context's error", err)
		}
		if len(waits) != 2 || !waits[0] || waits[1] {
			t.Errorf("told %v about waiting", waits)
		}
		s := r.p.Snapshot()
		// The lane's share is half; the batch in flight needs some memory of its own.
		if s.Bytes > budget*3/5 || s.Bytes < budget*2/5 {
			t.Errorf("%d bytes held, want about half of %d", s.Bytes, budget)
		}
		if got := r.metric("cdc_relay_in_flight_messages"); got != float64(s.Rows) || s.Rows != r.n {
			t.Errorf("in_flight_messages = %v, snapshot %d, published %d", got, s.Rows, r.n)
		}
		// Another lane still has room.
		m.grow("u", 1)
		r.publish(r.record(0, "u", "key"))
		ended := make(chan error)
		go func() { ended <- over(r.ctx) }()
		r.settle(10 * time.Millisecond)
		if !r.p.Blocked() || !r.p.Snapshot().Blocked {
			t.Error("not said to be blocked")
		}
		r.p.End()
		if err := <-ended; !errors.Is(err, publish.ErrSessionOver) {
			t.Errorf("Publish = %v, want ErrSessionOver", err)
		}
		close(hold)
		r.settle(time.Minute)
		if s := r.p.Snapshot(); s.Bytes != 0 || s.Rows != 0 {
			t.Errorf("%d bytes and %d rows are left", s.Bytes, s.Rows)
		}
	})
}

// TestLargeRecords: one that exceeds a lane's share, or the whole budget, goes alone.
func TestLargeRecords(t *testing.T) {
	const budget = 1 << 20
	m := newModel("t", 1)
	run(t, publish.Config{InFlightBytes: budget}, m, func(r *rig) {
		for _, size := range []int{100, budget * 3 / 4, 100, budget * 3, 100} {
			rec := r.record(r.n, "t", "key")
			rec.Value = make([]byte, size)
			r.publish(rec)
			r.n++
			if s := r.p.Snapshot(); size > budget && s.Rows != 1 || s.Bytes > max(budget, size+4096) {
				t.Errorf("with a record of %d bytes: %d rows, %d bytes", size, s.Rows, s.Bytes)
			}
		}
		r.drain(time.Minute)
		if got := len(m.topics["t"][0].log); got != 5 {
			t.Errorf("%d records, want 5", got)
		}
	})
}

// TestLargeRecordWaits: a record above a lane's share waits until the lane holds
// nothing, though the budget has room.
func TestLargeRecordWaits(t *testing.T) {
	const budget = 1 << 20
	m := newModel("t", 1)
	run(t, publish.Config{InFlightBytes: budget}, m, func(r *rig) {
		hold := make(chan struct{})
		m.topics["t"][0].hold = hold
		r.put(1)
		r.settle(time.Millisecond)
		done := make(chan struct{})
		go func() {
			defer close(done)
			rec := r.record(r.n, "t", "key")
			rec.Value = make([]byte, budget*3/4)
			r.publish(rec)
		}()
		r.settle(time.Second)
		if !r.p.Blocked() {
			t.Error("it did not wait")
		}
		close(hold)
		<-done
		r.drain(time.Minute)
	})
}

// TestSkippedRowsFreeMemory: rows that are settled already must not hold Publish.
func TestSkippedRowsFreeMemory(t *testing.T) {
	run(t, publish.Config{InFlightBytes: 64 << 10}, newModel("t", 1), func(r *rig) {
		r.put(2000)
		r.drain(time.Minute)
		r.begin()
		r.replay(0)
		r.drain(time.Minute)
		if got := len(r.m.topics["t"][0].log); got != 2000 {
			t.Errorf("%d records, want 2000", got)
		}
	})
}

func TestDrainedGivesUp(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = repeat(unlisted, 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(1)
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		if err := r.p.Drained(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drained = %v", err)
		}
		select {
		case <-r.p.Settled():
			t.Error("told of a settled row")
		default:
		}
		r.drain(time.Minute)
		<-r.p.Settled()
	})
}

// TestDrainedOfUnproved: rows that were passed over are not waited for once no more rows
// come, since only the row that proves them could settle them. Nor are they settled.
func TestDrainedOfUnproved(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.restart(1)
		r.publish(r.record(1, "t", "key"))
		r.publish(r.record(2, "t", "key"))
		ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
		defer cancel()
		if err := r.p.Drained(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("Drained = %v, want that it gives up at once", err)
		}
		if got := r.oldest(); got != 1 {
			t.Errorf("oldest = %d, want 1", got)
		}
	})
}
