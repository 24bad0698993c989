package publish_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

// TestDoubtOutlivesTheSession: that the history was given up is not forgotten when the
// session ends for another reason before anybody has heard of it.
func TestDoubtOutlivesTheSession(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.locked(func(*modelPartition) { r.m.topics["t"][0] = newPartition() })
		r.m.latency = 50 * time.Millisecond
		r.others(3)
		r.putBatch(1)
		r.settle(60 * time.Millisecond)
		r.others(10)
		r.settle(time.Second)
		r.reconnect(3)
		r.replay(3)
		r.settle(time.Second)
		if got := r.oldest(); got != 1 {
			t.Errorf("oldest = %d, want 1: rows 3 and 4 are on no topic", got)
		}
		r.wantHistoryError("acknowledged at offset")
		r.session.History++
		r.reconnect(3)
		r.replay(3)
		r.drain(time.Minute)
		r.wantNoReset()
		if got := r.values("t", 0); !strings.HasSuffix(got, " "+sequenceOf(3, 6)) {
			t.Errorf("t[0] holds %q", got)
		}
	})
}

// TestPastBatchOnAnotherTopic: a batch of a session that is over is acknowledged by a
// partition that was made again, at an offset that is not new.
func TestPastBatchOnAnotherTopic(t *testing.T) {
	tests := map[string]struct {
		answered bool // the session ends while the partition is being read
		renewed  bool // the next one is of another history anyway
	}{
		"answered between sessions":            {},
		"ends while it is read":                {answered: true},
		"ends while it is read, other history": {answered: true, renewed: true},
		"answered between them, other history": {renewed: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(5)
				r.drain(time.Second)
				r.locked(func(p *modelPartition) { p.faults = []fault{requestLost} })
				r.putBatch(10)
				r.settle(time.Microsecond)
				r.locked(func(*modelPartition) { r.m.topics["t"][0] = newPartition() })
				if tt.answered {
					r.locked(func(p *modelPartition) { p.reads = slices.Repeat([]error{kafka.OffsetNotAvailable}, 3) })
					r.settle(500 * time.Millisecond)
				}
				r.p.End()
				r.settle(time.Second)
				if !tt.renewed {
					r.reconnect(3)
					r.replay(3)
					r.settle(time.Second)
					if got := r.oldest(); got != 1 {
						t.Errorf("oldest = %d, want 1: rows 3 and 4 are on no topic", got)
					}
					r.wantHistoryError("acknowledged at offset")
				}
				r.session.History++
				r.reconnect(3)
				r.replay(3)
				r.drain(time.Minute)
				r.wantNoReset()
				if got := r.values("t", 0); !strings.HasSuffix(got, sequenceOf(3, 15)) {
					t.Errorf("t[0] holds %q", got)
				}
			})
		})
	}
}

// TestDeposedDoesNotJudge: what a partition holds may be the work of whoever has the
// slot now. A relay that may have lost it draws no conclusion, and once it has it back
// it knows these rows.
func TestDeposedDoesNotJudge(t *testing.T) {
	tests := map[string]func(r *rig){
		"while it opens": func(r *rig) {
			r.restart(3)
			r.m.latency = 100 * time.Millisecond
			r.replay(3)
		},
		"while it searches": func(r *rig) {
			r.locked(func(p *modelPartition) { p.faults = []fault{requestLost, outOfOrder} })
			r.putBatch(1)
			r.locked(func(*modelPartition) { r.m.latency = 500 * time.Millisecond })
		},
	}
	for name, start := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(5)
				r.drain(time.Second)
				start(r)
				r.settle(50 * time.Millisecond)
				r.alive.Store(false)
				r.locked(func(p *modelPartition) {
					for i := 5; i < 8; i++ {
						rec, now := p.log[4], r.record(i, "t", "key")
						rec.value, rec.stamp.Position, rec.stamp.IDHash = string(now.Value), now.Position, position.HashID(now.ID)
						rec.header = rec.stamp.AppendText(nil)
						r.m.write(p, rec)
					}
				})
				before := r.fetches()
				r.settle(10 * time.Second)
				r.wantNoReset()
				if got := r.fetches() - before; got > 4 {
					t.Errorf("%d requests to read", got)
				}
				r.n = 8
				r.alive.Store(true)
				r.reconnect(3)
				r.replay(3)
				r.put(2)
				r.drain(time.Minute)
				r.wantValues("t", 0, sequenceOf(0, 10))
				r.wantNoReset()
			})
		})
	}
}
