package inbox

import (
	"context"
	"errors"
	"sync"
	"time"
)

// awayError is a handler's failure on a connection that was lost, sanitised for the log.
type awayError struct{ err error }

func (e *awayError) Error() string { return e.err.Error() }
func (e *awayError) Unwrap() error { return e.err }

// failed decides what a failure means for the message. r is what is known of it already.
func (p *Processor) failed(ctx context.Context, m *Message, r report, err error) report {
	failure, counts := errors.AsType[*handlerError](err)
	if ctx.Err() != nil {
		p.uncount(ctx, m)
		return report{Delivery: Delivery{Outcome: Retry, Attempts: r.Attempts, Duration: r.Duration, Err: ctx.Err()}}
	}
	if !counts || isAway(err) || isConflict(err) {
		p.uncount(ctx, m)
		if counts && !isConflict(err) {
			err = &awayError{errors.New(sanitise(failure.err, m))}
		}
		return p.unavailable(ctx, r, err)
	}
	p.back() // the database has answered
	r = report{Delivery: Delivery{Outcome: Retry, Attempts: r.Attempts, Duration: r.Duration, Replayed: r.Replayed, Err: failure.err}}
	if p.breaks(m, failure.err) {
		p.uncount(ctx, m)
		r.after = p.cfg.Breaker.Probe
		return r
	}
	n, err := p.countFailed(ctx, m, failure.err)
	if err != nil {
		return p.unavailable(ctx, r, err)
	}
	r.Attempts = n
	reason := "max_deliveries"
	if isPermanent(failure.err) {
		reason = "permanent"
	}
	last := reason == "permanent" || n >= p.cfg.MaxDeliveries
	if last && p.cfg.Order != Block {
		return p.bury(ctx, m, r, reason, failure.err)
	}
	r.after, r.blocked = p.cfg.Backoff.after(n), last
	if last {
		r.after = p.cfg.Backoff.Max
	}
	if after, ok := errors.AsType[*retryAfterError](failure.err); ok {
		r.after = after.after
	}
	return r
}

// unavailable is the report of a delivery that failed for a reason that is neither the
// message's nor the handler's. It uses no attempt.
func (p *Processor) unavailable(ctx context.Context, r report, err error) report {
	r.Outcome, r.Err = Retry, err
	if ctx.Err() != nil {
		r.Err = ctx.Err()
		return r
	}
	if isConflict(err) { // it has met others twenty times: later will do
		r.after = p.cfg.Backoff.after(1)
		return r
	}
	since, first := p.away.fails(p.now())
	if first {
		p.cfg.Logger.Warn("the inbox database cannot be used, trying again", "consumer", p.cfg.Consumer, "err", err)
		p.cfg.Observer.Changed(State{Consumer: p.cfg.Consumer, DatabaseAway: true, BreakerOpen: p.breakerOpen(), Err: err})
	}
	r.after = p.cfg.Backoff.while(p.now().Sub(since))
	return r
}

// back notes that the database answers. The one that says so may come a second later, of
// the next message or of the runner.
func (p *Processor) back() {
	since, failures := p.away.answers(p.now())
	if failures == 0 {
		return
	}
	p.cfg.Logger.Info("the inbox database can be used again", "consumer", p.cfg.Consumer,
		"after", p.now().Sub(since).Round(time.Millisecond), "failures", failures)
	p.cfg.Observer.Changed(State{Consumer: p.cfg.Consumer, BreakerOpen: p.breakerOpen()})
}

// breaks notes a failure and reports whether it is no longer taken for the message's.
func (p *Processor) breaks(m *Message, cause error) bool {
	key := string(m.lane())
	if key == "" {
		key = m.ID
	}
	open, opens := p.breaker.failed(key)
	if opens {
		p.cfg.Logger.Error("every message fails: one at a time is tried now, and none is given up", "consumer", p.cfg.Consumer,
			"failures", p.cfg.Breaker.Failures, "err", sanitise(cause, m))
		p.cfg.Observer.Changed(State{Consumer: p.cfg.Consumer, BreakerOpen: true, Err: cause})
	}
	return open
}

// handled notes a message whose handler succeeded.
func (p *Processor) handled() {
	if p.breaker.succeeded() {
		p.cfg.Logger.Info("messages are handled again", "consumer", p.cfg.Consumer)
		p.cfg.Observer.Changed(State{Consumer: p.cfg.Consumer})
	}
}

// outage remembers how long the database has been away. The zero value: it is there.
type outage struct {
	mu       sync.Mutex
	since    time.Time
	last     time.Time // the last failure
	answered time.Time // the last answer between failures
	failures int
}

// outageEnds is how long nothing must have failed for an answer to end an outage: a server
// that stops or starts, and a pool with dead connections, answers some and fails others.
const outageEnds = time.Second

// fails notes a failure. It returns since when there has been no answer, and whether this
// is the first failure.
func (o *outage) fails(now time.Time) (since time.Time, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures == 0 {
		o.since, o.answered = now, now
	}
	o.failures++
	o.last = now
	return o.answered, o.failures == 1
}

// answers notes an answer and returns what it ends.
func (o *outage) answers(now time.Time) (since time.Time, failures int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answered = now
	if now.Sub(o.last) < outageEnds {
		return time.Time{}, 0
	}
	since, failures = o.since, o.failures
	o.failures = 0
	return since, failures
}
