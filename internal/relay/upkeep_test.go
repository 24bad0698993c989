package relay

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// Letters that are too large to delete a thousand at a time are deleted all the same.
func TestPurgeOfLargeLetters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, box := newKeepingRelay(t, newBrokers(), io.Discard)
		r.cfg.DeadLetters.Retention = time.Hour
		box.old, box.slow = 500, 60
		l := &letters{holds: newHolds(), s: &session{r: r}, store: box, turn: make(chan struct{}, 1), over: t.Context()}
		u := upkeep{counted: time.Now().Add(time.Hour)}
		for range 60 { // one a second
			u.round(context.Background(), l)
		}
		if box.old != 0 || u.purged.IsZero() {
			t.Errorf("%d are left", box.old)
		}
	})
}
