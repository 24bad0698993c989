package relay

import (
	"context"
	"time"
)

const (
	// undecidedPatience is how long the breaker waits for rows of which none is decided,
	// though the brokers answer: such as those that are to be proved by a row that the
	// stream has not brought yet.
	undecidedPatience = 10 * time.Second
	undecidedPause    = 50 * time.Millisecond
)

// admit counts one more dead letter, or says why there must be none. What no lane takes
// is refused at once, while the rows before it are on their way to the brokers: so where
// the breaker says no, it is asked again as those are decided. Every row waits for
// earlier ones alone, so no two wait for each other.
func (l *letters) admit(ctx context.Context, seq uint64) (ordinal int64, err error) {
	p := l.s.r.publisher
	before, since := p.Decided(), time.Now()
	for {
		decided := p.Decided()
		if ordinal, err = l.s.r.breaker.admit(decided); err == nil {
			return ordinal, nil
		}
		if oldest, any := p.Oldest(); !any || oldest >= seq {
			return 0, err
		}
		if decided != before || p.Snapshot().Broker.Failures > 0 {
			before, since = decided, time.Now()
		}
		if time.Since(since) >= undecidedPatience {
			return 0, err
		}
		select {
		case <-time.After(undecidedPause):
		case <-l.s.quit:
			return 0, err
		case <-ctx.Done():
			return 0, err
		}
	}
}
