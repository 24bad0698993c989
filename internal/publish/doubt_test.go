package publish_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
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
