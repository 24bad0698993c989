package publish

import (
	"context"
	"time"
)

const (
	// probeEvery is how long nothing may be heard from the brokers before the
	// publisher asks. probeTimeout is how long that may take.
	probeEvery   = 2 * time.Second
	probeTimeout = 2 * time.Second
)

// health is what is known of the brokers' reachability, from lanes and probes.
type health struct {
	lastSuccess time.Time
	failures    int // in a row
	since       time.Time
	err         error
}

func (h *health) observe(err error, now time.Time) {
	if err == nil {
		*h = health{lastSuccess: now}
		return
	}
	if h.failures == 0 {
		h.since = now
	}
	h.failures++
	h.err = err
}

// probe asks a broker for an answer whenever none was heard for a while, so that
// an idle relay, too, knows whether it could publish.
func (p *Publisher) probe(ctx context.Context) {
	t := time.NewTicker(probeEvery / 2)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		silent := time.Since(p.health.lastSuccess) >= probeEvery
		p.mu.Unlock()
		if !silent {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, probeTimeout)
		err := p.broker.Ping(ask)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			// The idle connections are likely gone, too. Over a new one it is certain that
			// a batch did not arrive, if it did not.
			p.broker.Refresh()
		}
		p.mu.Lock()
		p.health.observe(err, time.Now())
		p.mu.Unlock()
	}
}
