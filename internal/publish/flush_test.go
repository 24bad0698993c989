package publish_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestFlush: rows published with More wait for Flush, and then go in one batch.
func TestFlush(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(1) // so that the lane is there
		r.drain(time.Second)
		r.putMore(5)
		r.settle(time.Minute)
		if got := r.requests(); got != 1 {
			t.Errorf("%d requests before Flush, want 1", got)
		}
		r.p.Flush()
		r.drain(time.Second)
		if got := r.requests(); got != 2 {
			t.Errorf("%d requests after Flush, want 2", got)
		}
		r.wantValues("t", 0, "0 1 2 3 4 5")
	})
}

// TestFullMemoryFlushes: a Publish that waits for memory has everything sent that
// waits for Flush, else it would wait for ever.
func TestFullMemoryFlushes(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{InFlightBytes: 64 << 10}, m, func(r *rig) {
		r.put(1)
		r.drain(time.Second)
		r.putMore(2000)
		r.p.Flush()
		r.drain(time.Minute)
		if got := r.metric("cdc_relay_messages_published_total", "t"); got != 2001 {
			t.Errorf("messages_published_total = %v, want 2001", got)
		}
	})
}

// putMore is put with More set.
func (r *rig) putMore(n int) {
	r.t.Helper()
	for range n {
		rec := r.record(r.n, "t", "key")
		rec.More = true
		r.publish(rec)
		r.n++
	}
}
