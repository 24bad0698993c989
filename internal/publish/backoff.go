package publish

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff doubles a pause from initial to max. Each pause is drawn from its upper
// half, so that lanes which fail together do not come back together.
type backoff struct {
	initial, max time.Duration
	pause        time.Duration
}

func (b *backoff) next() time.Duration {
	b.pause = min(max(2*b.pause, b.initial), b.max)
	return b.pause/2 + rand.N(b.pause/2+1) //nolint:gosec // Jitter is no secret.
}

func (b *backoff) reset() { b.pause = 0 }

// sleep waits, or returns early when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
