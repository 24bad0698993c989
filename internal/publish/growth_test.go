package publish_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestGrowthWaitsForReading: a lane without rows that still has to read what lies before
// its last batch is not done. What is there was placed by the count before.
func TestGrowthWaitsForReading(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(time.Second)
		r.locked(func(p *modelPartition) { p.faults = []fault{requestLate} })
		r.putBatch(1) // Row 5, which arrives with the next request.
		r.settle(10 * time.Millisecond)
		r.restart(3)
		before := r.requests()
		r.replay(3)
		for r.requests() == before {
			r.settle(10 * time.Microsecond)
		}
		r.settle(900 * time.Microsecond)
		r.locked(func(*modelPartition) { r.m.latency = 3 * time.Second }) // Longer than the look.
		r.m.grow("t", 4)
		r.settle(time.Minute)
		r.locked(func(*modelPartition) { r.m.latency = time.Millisecond })
		r.p.Passed(commitAt(r.n))
		r.settle(time.Second)
		if got := r.p.Snapshot().Rows; got != 0 || r.oldest() != 0 {
			t.Errorf("%d rows wait, oldest %d", got, r.oldest())
		}
		r.put(20)
		r.drain(time.Minute)
		r.wantNoReset()
		r.wantMetric("duplicates_detected_total", 1)
		for i, p := range r.m.topics["t"] {
			for _, rec := range p.log {
				if want := map[bool]uint32{true: 1, false: 4}[rec.order <= 7]; rec.stamp.Partitions != want {
					t.Errorf("row %s in partition %d says %d partitions, want %d", rec.value, i, rec.stamp.Partitions, want)
				}
			}
		}
	})
}

// TestHandOverMakesRoom: a row that waits for memory of the queue of a topic without
// lanes goes to its lane as soon as there is one with room.
func TestHandOverMakesRoom(t *testing.T) {
	cfg := publish.Config{InFlightBytes: 1 << 20}
	run(t, cfg, newModel("", 0), func(r *rig) {
		keys := r.keys(2)
		go func() {
			value := make([]byte, 20<<10)
			for i := range 30 {
				rec := r.record(i, "t", keys[i/25])
				rec.Value, rec.Seq = value, uint64(i+1)
				if r.p.Publish(r.ctx, rec) != nil {
					return
				}
			}
		}()
		r.settle(time.Second)
		if !r.p.Blocked() {
			t.Fatal("there is room for all")
		}
		r.m.grow("t", 2)
		r.locked(func(p *modelPartition) { p.hold = make(chan struct{}) })
		r.settle(5 * time.Second)
		if r.p.Blocked() || r.values("t", 1) == "" {
			t.Errorf("the row for another lane still waits: %v", r.p.Snapshot().Problems())
		}
	})
}
