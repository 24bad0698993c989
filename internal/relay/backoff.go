package relay

import (
	"context"
	"math/rand/v2"
	"time"
)

// The pause between two sessions. The cap keeps the time between "the server
// is back" and "the relay streams again" within a few seconds while a fleet of
// relays does not hammer a server that is down.
const (
	backoffFirst = 100 * time.Millisecond
	backoffCap   = 3 * time.Second
)

// backoff counts failures in a row. The zero value is ready; it belongs to
// one goroutine.
type backoff struct{ failures int }

// next returns the pause before the next attempt: doubling, capped, and
// spread over its upper half so that instances do not move in step.
func (b *backoff) next() time.Duration {
	pause := backoffCap
	if b.failures < 10 {
		pause = min(backoffFirst<<b.failures, backoffCap)
	}
	b.failures++
	return pause/2 + rand.N(pause/2) //nolint:gosec // jitter needs no secrecy
}

// wait pauses until d has passed or ctx ends, and reports whether ctx lives.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
