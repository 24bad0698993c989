package publish_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestReadingIsBounded: a reading goes back in growing windows, not without end, and
// no further than the first record from before the session's start.
func TestReadingIsBounded(t *testing.T) {
	tests := map[string]struct {
		cfg          publish.Config
		start        int
		most, repeat int
	}{
		"the whole":       {resuming(), 0, 520, 0},
		"to the start":    {resuming(), 4990, 30, 0},
		"max_records":     {publish.Config{Resume: true, ResumeMaxRecords: 300}, 0, 35, 0},
		"max_bytes":       {publish.Config{Resume: true, ResumeMaxBytes: 4 << 20}, 0, 13, 0},
		"other's records": {publish.Config{Resume: true, ResumeMaxRecords: 300}, 4990, 35, 10},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, tt.cfg, newModel("t", 1), func(r *rig) {
				r.put(5000)
				r.drain(time.Minute)
				if tt.repeat > 0 {
					r.others(400)
				}
				r.restart(tt.start)
				before := r.fetches()
				r.replay(tt.start)
				r.drain(time.Minute)
				if got := r.fetches() - before; got > tt.most {
					t.Errorf("%d requests to read, want at most %d", got, tt.most)
				}
				r.locked(func(p *modelPartition) {
					ours := 0
					for _, rec := range p.log {
						if rec.header != nil {
							ours++
						}
					}
					if ours != 5000+tt.repeat {
						t.Errorf("%d records of ours, want %d", ours, 5000+tt.repeat)
					}
				})
				r.wantNoReset()
			})
		})
	}
}

// TestReadingAfterPromotion: records of an earlier timeline end the reading where the
// slot's position does, though nothing of them is passed over.
func TestReadingAfterPromotion(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(5000)
		r.drain(time.Minute)
		r.session.Timeline++
		r.restart(4998)
		before := r.fetches()
		r.replay(4998)
		r.drain(time.Minute)
		if got := r.fetches() - before; got > 30 {
			t.Errorf("%d requests to read", got)
		}
		r.wantValues("t", 0, sequenceOf(0, 5000)+" 4998 4999")
		r.wantNoReset()
	})
}

// TestDeletedAndCompactedTail: what is gone from the log costs repeats at worst.
func TestDeletedAndCompactedTail(t *testing.T) {
	tests := map[string]struct {
		change func(p *modelPartition)
		want   string
	}{
		"retention":    {func(p *modelPartition) { p.first = 8 }, sequenceOf(0, 10)},
		"all deleted":  {func(p *modelPartition) { p.first = 10 }, sequenceOf(0, 10) + " " + sequenceOf(5, 10)},
		"compaction":   {func(p *modelPartition) { p.log[4].gone, p.log[8].gone = true, true }, sequenceOf(0, 10)},
		"tail is gone": {func(p *modelPartition) { p.log[8].gone, p.log[9].gone = true, true }, sequenceOf(0, 10) + " 8 9"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(10)
				r.drain(time.Second)
				r.locked(tt.change)
				r.restart(5)
				r.replay(5)
				r.drain(time.Minute)
				r.wantValues("t", 0, tt.want)
				r.wantNoReset()
			})
		})
	}
}

// TestReadingFails: what heals by itself makes the lane wait, and is shown.
func TestReadingFails(t *testing.T) {
	for _, err := range []error{
		kafka.OffsetNotAvailable, kafka.NotLeaderForPartition, kafka.OffsetOutOfRange, errNoAnswer, kafka.Error(999),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			run(t, resuming(), newModel("t", 1), func(r *rig) {
				r.put(10)
				r.drain(time.Second)
				r.locked(func(p *modelPartition) { p.reads = slices.Repeat([]error{err}, 40) })
				r.restart(5)
				before := r.requests()
				r.replay(5)
				r.put(3)
				r.settle(20 * time.Second)
				if r.requests() != before {
					t.Error("the lane did not wait")
				}
				if p := strings.Join(r.p.Snapshot().Problems(), "; "); !strings.Contains(p, "t[0] fails") {
					t.Errorf("problems %q", p)
				}
				r.drain(5 * time.Minute)
				r.wantValues("t", 0, sequenceOf(0, 13))
				if p := r.p.Snapshot().Problems(); len(p) != 0 {
					t.Errorf("still a problem: %v", p)
				}
			})
		})
	}
}

// TestReadingHangs: a lane that waits for its reading is named.
func TestReadingHangs(t *testing.T) {
	run(t, resuming(), newModel("t", 2), func(r *rig) {
		keys := r.keys(2)
		free := make(chan struct{})
		r.restart(0)
		for _, p := range r.m.topics["t"] {
			p.onRead = func() { <-free }
		}
		for i, key := range keys {
			r.session.WALEnd = 1 << 40
			if i == 0 {
				r.begin()
			}
			r.publish(r.record(i, "t", key))
		}
		r.settle(10 * time.Second)
		if p := strings.Join(r.p.Snapshot().Problems(), "; "); !strings.Contains(p, "t[0] has waited") || !strings.Contains(p, "t[1] has waited") {
			t.Errorf("problems %q", p)
		}
		if got := r.fetches(); got != 1 {
			t.Errorf("%d requests to read at once, want 1", got)
		}
		close(free)
		r.drain(time.Minute)
		if p := r.p.Snapshot().Problems(); len(p) != 0 {
			t.Errorf("still a problem: %v", p)
		}
	})
}

// TestReadingRefused: without the right to read there is one warning a topic, and
// what is not confirmed is published again.
func TestReadingRefused(t *testing.T) {
	for _, code := range []kafka.Error{kafka.TopicAuthorizationFailed, kafka.UnsupportedVersion} {
		t.Run(code.Title(), func(t *testing.T) {
			run(t, resuming(), newModel("t", 2), func(r *rig) {
				keys := r.keys(2)
				both := func(from, to int) {
					for i := from; i < to; i++ {
						r.publish(r.record(i, "t", keys[i%2]))
					}
				}
				both(0, 10)
				r.n = 10
				r.drain(time.Second)
				for _, p := range r.m.topics["t"] {
					p.reads = slices.Repeat([]error{code}, 1000)
				}
				r.restart(6)
				both(6, 12)
				r.drain(time.Minute)
				r.wantValues("t", 0, "0 2 4 6 8 6 8 10")
				r.wantValues("t", 1, "1 3 5 7 9 7 9 11")
				if got := r.logged("partitions cannot be read"); got != 1 {
					t.Errorf("warned %d times:\n%s", got, r.log.String())
				}
			})
		})
	}
}

// TestSessionEndsDuringReading: the next session reads anew.
func TestSessionEndsDuringReading(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(10)
		r.drain(time.Second)
		r.m.latency = time.Minute
		r.restart(5)
		r.replay(5)
		r.settle(90 * time.Second) // The offsets are known, the records are not.
		r.m.latency = time.Millisecond
		r.begin()
		r.replay(5)
		r.put(2)
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 12))
	})
}
