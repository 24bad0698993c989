package inbox

import (
	"context"
	"sync"
	"time"
)

// breaker tells a fault of the messages from one of the world: when everything fails over
// different keys, one message at a time is tried, and none is given up, until one
// succeeds.
type breaker struct {
	cfg   Breaker
	now   func() time.Time
	probe chan struct{} // holds the one that is tried

	mu       sync.Mutex
	failures int
	keys     map[string]struct{}
	closed   chan struct{} // nil while closed; closed when the breaker closes
	again    bool          // while open: one has failed since the last probe ended
	pause    time.Duration
	next     time.Time // of the next probe
}

func newBreaker(cfg Breaker, now func() time.Time) *breaker {
	return &breaker{cfg: cfg, now: now, probe: make(chan struct{}, 1), keys: map[string]struct{}{}}
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed != nil
}

// enter waits for the turn of a message while the breaker is open. leave gives the turn
// back; when a message has failed meanwhile, the next one has a longer pause before it.
func (b *breaker) enter(ctx context.Context) (leave func(), err error) {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed == nil {
		return func() {}, nil
	}
	select {
	case b.probe <- struct{}{}:
	case <-closed:
		return func() {}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave = func() {
		b.mu.Lock()
		if b.closed != nil && b.again {
			b.again = false
			b.pause = min(2*b.pause, b.cfg.ProbeMax)
			b.next = b.now().Add(b.pause)
		}
		b.mu.Unlock()
		<-b.probe
	}
	b.mu.Lock()
	wait := b.next.Sub(b.now())
	b.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-closed:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	return leave, nil
}

// succeeded notes a message that was handled, and reports whether that closes the breaker.
func (b *breaker) succeeded() (closes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
	clear(b.keys)
	if b.closed == nil {
		return false
	}
	close(b.closed)
	b.closed = nil
	return true
}

// failed notes one that was not, and reports whether the breaker is open, and whether it
// opens now.
func (b *breaker) failed(key string) (open, opens bool) {
	if b.cfg.Off {
		return false, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		b.again = true // not longer at once: many that were at work may end now
		return true, false
	}
	b.failures++
	if len(b.keys) < b.cfg.Keys {
		b.keys[key] = struct{}{}
	}
	if b.failures < b.cfg.Failures || len(b.keys) < b.cfg.Keys {
		return false, false
	}
	b.closed = make(chan struct{})
	b.again = false
	b.pause = b.cfg.Probe
	b.next = b.now().Add(b.pause)
	return true, true
}
