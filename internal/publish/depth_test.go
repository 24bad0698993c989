package publish_test

import (
	"strings"
	"testing"
	"time"
)

// TestResumeBehindOthers: what others have written behind our last record does not
// hide it: a reading goes on backwards, however many there are within its bounds.
func TestResumeBehindOthers(t *testing.T) {
	run(t, resuming(), newModel("t", 1), func(r *rig) {
		r.put(10)
		r.drain(time.Second)
		r.others(40)
		r.restart(5)
		r.replay(5)
		r.put(1)
		r.drain(time.Minute)
		got := strings.Join(strings.Fields(strings.ReplaceAll(r.values("t", 0), "other", "")), " ")
		if got != sequenceOf(0, 11) {
			t.Errorf("t[0] holds %q beside the others' records", got)
		}
		r.wantMetric("resume_rows_skipped_total", 5)
	})
}
