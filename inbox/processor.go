package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Processor handles messages for one consumer: it claims each, calls the handler, and
// commits both in one transaction. It is safe for concurrent use; the messages of one key
// must come one after the other, each after the result of the last.
type Processor struct {
	cfg     Config
	breaker *breaker
	gaps    gapTimes
	away    outage
}

// New returns a processor. It does not touch the database; [Processor.Check] does.
func New(cfg Config) (*Processor, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Processor{cfg: cfg, breaker: newBreaker(cfg.Breaker, cfg.Now)}, nil
}

// Consumer is the name that the processor claims messages for.
func (p *Processor) Consumer() string { return p.cfg.Consumer }

// Retention is how long settled messages are remembered; negative: for ever.
func (p *Processor) Retention() time.Duration { return p.cfg.Retention }

func (p *Processor) now() time.Time { return p.cfg.Now() }

func (p *Processor) breakerOpen() bool { return p.breaker.isOpen() }

// report is what becomes of a delivery, for the caller and for the observer.
type report struct {
	Delivery
	after   time.Duration
	blocked bool
}

// Process delivers a message once and says what became of it; it never panics, and it
// returns only when the outcome is committed, or nothing is. With Retry the message is not
// settled: deliver it again after Result.After, and commit no offset past it. When ctx
// ends the delivery is broken off, Retry is returned, and it does not count.
//
// While the breaker is open Process waits for its turn.
func (p *Processor) Process(ctx context.Context, m *Message) Result {
	leave, err := p.breaker.enter(ctx)
	if err != nil {
		return Result{Outcome: Retry, Err: err}
	}
	defer leave()
	if id := usableID(m.ID); id != m.ID {
		other := *m
		other.ID = id
		m = &other
	}
	r := p.deliver(ctx, m)
	p.tell(m, &r)
	return Result{Outcome: r.Outcome, Attempts: r.Attempts, After: r.after, Blocked: r.blocked, Err: r.Err}
}

// tell completes a report and passes it on.
func (p *Processor) tell(m *Message, r *report) {
	r.Consumer, r.Topic, r.Type = p.cfg.Consumer, m.Topic, m.Type()
	p.cfg.Observer.Delivered(r.Delivery)
	if r.Outcome == DeadLettered {
		p.cfg.Logger.Warn("message is a dead letter now", "consumer", p.cfg.Consumer, "message", m.ID, "topic", m.Topic,
			"partition", m.Partition, "offset", m.Offset, "reason", r.Reason, "attempts", r.Attempts, "err", sanitise(r.Err, m))
	}
}

// errWait has a message delivered again without effect.
var errWait = errors.New("an earlier version of the key is missing")

// deliver is Process without the breaker and the observer.
func (p *Processor) deliver(ctx context.Context, m *Message) report {
	if m.ID == "" {
		other := *m
		other.ID = m.readAt()
		return p.bury(ctx, &other, report{}, "no_id", errors.New("the record has no header id"))
	}
	if p.cfg.CountBefore {
		switch state, err := p.countBefore(ctx, m); {
		case err != nil:
			return p.unavailable(ctx, report{}, err)
		case state == alreadySettled:
			return report{Delivery: Delivery{Outcome: Duplicate}}
		case state == usedUp && p.cfg.Order != Block:
			r := report{Delivery: Delivery{Attempts: p.cfg.MaxDeliveries}}
			return p.bury(ctx, m, r, "crashed", errors.New("the process ended while it handled the message"))
		}
	}
	var r report
	lane := m.lane()
	var c claimed
	took, err := p.transact(ctx, m, transaction{
		begin: func() (pgx.Tx, error) { return p.claim(ctx, m, lane, &c) },
		before: func(tx pgx.Tx) (bool, error) {
			a, err := p.admit(ctx, tx, m, lane, c)
			r = report{Delivery: a}
			return a.Outcome == Processed, err
		},
		after: func(tx pgx.Tx) error {
			if err := p.sequenceDone(ctx, tx, m, lane); err != nil {
				return err
			}
			if r.Attempts > 0 || p.cfg.CountBefore {
				return forgetAttempts(ctx, tx, p.cfg.Consumer, m.ID)
			}
			return nil
		},
	})
	r.Duration = took
	switch {
	case errors.Is(err, errWait):
		p.uncount(ctx, m)
		return report{Delivery: Delivery{Outcome: Retry, Gap: true, Err: err}, after: p.cfg.Backoff.after(1)}
	case err != nil:
		return p.failed(ctx, m, r, err)
	}
	p.back()
	if r.Outcome == Processed {
		r.Attempts = 0
		p.handled()
	}
	return r
}

// admit says what to do with a message that was claimed in tx: Processed for the handler's
// turn, or what it has settled already.
func (p *Processor) admit(ctx context.Context, tx pgx.Tx, m *Message, lane []byte, c claimed) (Delivery, error) {
	switch {
	case !c.first: // It may have been counted while another instance settled it.
		return Delivery{Outcome: Duplicate}, forgetAttempts(ctx, tx, p.cfg.Consumer, m.ID)
	case c.waits && p.cfg.Order != Skip:
		return Delivery{Outcome: Parked, Attempts: c.attempts, Reason: "behind"}, p.park(ctx, tx, m, lane, "behind")
	}
	v, err := p.sequenceCheck(ctx, tx, m, lane)
	switch {
	case err != nil:
		return Delivery{}, err
	case v == wait:
		return Delivery{}, errWait
	case v == stale:
		return Delivery{Outcome: Stale, Attempts: c.attempts}, p.settleAs(ctx, tx, m, "stale")
	case v == gap:
		return Delivery{Outcome: Parked, Attempts: c.attempts, Reason: "gap", Gap: true}, p.park(ctx, tx, m, lane, "gap")
	}
	return Delivery{Outcome: Processed, Attempts: c.attempts}, nil
}

// handlerError is a failure that counts: of the handler, or of what it left to the commit.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// conflicts bounds how often a transaction that met another one is run again.
const conflicts = 20

// transaction is what transact runs, in this order.
type transaction struct {
	begin  func() (pgx.Tx, error)        // nil: by the configured options, and nothing else
	before func(tx pgx.Tx) (bool, error) // says whether it is the handler's turn
	after  func(tx pgx.Tx) error         // what follows on the handler, may be nil without its turn
}

// transact runs a transaction, and runs it again while the server answers that it met
// another one. took is the handler's time. The handler's own failure is a *handlerError.
func (p *Processor) transact(ctx context.Context, m *Message, t transaction) (took time.Duration, err error) {
	if t.begin == nil {
		t.begin = func() (pgx.Tx, error) { return p.begin(ctx) }
	}
	for n := 1; ; n++ {
		took, err = p.transactOnce(ctx, m, t)
		if !isConflict(err) || n == conflicts || pause(ctx, rand.N(5*time.Millisecond<<min(n, 5))) != nil { //nolint:gosec // it spreads retries
			return took, err
		}
	}
}

func (p *Processor) begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := p.cfg.Pool.BeginTx(ctx, p.cfg.TxOptions)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	return tx, nil
}

func (p *Processor) transactOnce(ctx context.Context, m *Message, t transaction) (took time.Duration, err error) {
	tx, err := t.begin()
	if err != nil {
		return 0, err
	}
	defer rollBack(ctx, tx)
	proceed, err := t.before(tx)
	if err != nil {
		return 0, err
	}
	if proceed {
		began := time.Now()
		err = p.call(ctx, tx, m)
		took = time.Since(began)
		if err != nil {
			// A limit of the handler's own also closes the connection, and is the handler's.
			if tx.Conn().IsClosed() && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				return took, &awayError{errors.New(sanitise(err, m))}
			}
			return took, &handlerError{err}
		}
		if err := t.after(tx); err != nil {
			if isAborted(err) {
				return took, &handlerError{err} // the handler kept the error to itself
			}
			return took, err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		err = fmt.Errorf("commit: %w", err)
		if proceed && !isAway(err) && !isConflict(err) && !tx.Conn().IsClosed() {
			return took, &handlerError{err} // a deferred constraint, or an error that the handler kept to itself
		}
		return took, err
	}
	return took, nil
}

// call calls the handler and makes an error of a panic.
func (p *Processor) call(ctx context.Context, tx pgx.Tx, m *Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{kind: fmt.Sprintf("%T", v), stack: debug.Stack()}
			p.cfg.Logger.Error("the handler panicked", "consumer", p.cfg.Consumer, "message", m.ID, "kind", fmt.Sprintf("%T", v),
				"stack", framesOf(err.(*panicError).stack)) //nolint:errorlint,forcetypeassert // it was made two lines above
		}
	}()
	return p.cfg.Handler(ctx, handlerTx{tx}, m)
}

// handlerTx is the transaction as the handler has it: its end is not the handler's, since
// a claim that were committed or given up there would be counted as something else.
type handlerTx struct{ pgx.Tx }

var errNotYours = errors.New("the transaction belongs to the processor, which commits it when the handler returns nil")

func (handlerTx) Commit(context.Context) error { return errNotYours }

func (handlerTx) Rollback(context.Context) error { return errNotYours }

// rollbackTimeout bounds the wait for a server that does not answer any more; the
// connection is closed then, which rolls back as well.
const rollbackTimeout = 5 * time.Second

// rollBack ends a transaction that was not committed; after a commit it does nothing.
func rollBack(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// framesOf leaves out of a stack what may hold a value: the line with the panic's own
// text never is in debug.Stack, but the arguments of calls are, as addresses.
func framesOf(stack []byte) string {
	var out []string
	for line := range strings.Lines(string(stack)) {
		if at, found := strings.CutPrefix(line, "\t"); found {
			out = append(out, strings.TrimSpace(at))
		}
	}
	return strings.Join(out, "; ")
}

// pause waits, or returns ctx's error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
