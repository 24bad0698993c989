package publish_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestAge: how far publishing is behind is the age of the oldest row that is not
// acknowledged, whether it is sent, queued or waits for its topic; 0 while there is
// none, and never negative.
func TestAge(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		want := func(seconds float64) {
			t.Helper()
			if got := r.metric("cdc_relay_oldest_unacknowledged_seconds"); got != seconds {
				t.Errorf("age = %v, want %v", got, seconds)
			}
		}
		put := func(topic string, committed time.Duration) {
			rec := r.record(r.n, topic, "key")
			rec.CommitTime = time.Now().Add(committed)
			r.publish(rec)
			r.n++
		}
		want(0)
		put("t", 0)
		r.drain(time.Second)
		want(0)
		hold := make(chan struct{})
		m.topics["t"][0].hold = hold
		put("t", time.Minute) // by a clock that is ahead
		want(0)
		r.settle(2 * time.Minute)
		want(60)
		put("missing", -time.Hour)
		want(3600)
		put("t", 0)
		want(3600)
		m.grow("missing", 1)
		r.settle(2 * time.Second)
		want(62)
		close(hold)
		r.drain(time.Minute)
		want(0)
	})
}
