package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// redeliver handles a letter in one transaction: the effect, the letter's end and the
// message's outcome are there together or not at all. It reports whether the letter is
// out of the way; an error says that the database cannot be used.
func (p *Processor) redeliver(ctx context.Context, id int64) (gone bool, err error) {
	leave, err := p.breaker.enter(ctx)
	if err != nil {
		return false, nil // ctx has ended
	}
	defer leave()
	l := &letter{id: id}
	at := p.now()
	if p.cfg.CountBefore {
		r, err := p.countLetter(ctx, l)
		if err != nil || r.Outcome == DeadLettered {
			return p.redelivered(l, r, err)
		}
		at = at.Add(countLease + time.Minute) // past its own lease, whose time was taken a little later
	}
	r, err := p.handleLetter(ctx, l, at)
	if failure, ok := errors.AsType[*handlerError](err); ok && ctx.Err() == nil && !isAway(err) && !isConflict(err) {
		p.back() // the database has answered
		r, err = p.letterFailed(ctx, l, r, failure.err)
	} else if err != nil && l.message.ID != "" {
		p.uncount(ctx, &l.message)
	}
	return p.redelivered(l, r, err)
}

// redelivered tells what became of a letter.
func (p *Processor) redelivered(l *letter, r report, err error) (gone bool, _ error) {
	if errors.Is(err, errNotTaken) {
		return false, nil
	}
	if l.message.ID == "" {
		return false, err // the database is away, and the letter was not read
	}
	r.Replayed = l.replays > 0
	if err != nil {
		r.Outcome, r.Reason, r.Err = Retry, "", err
	}
	p.tell(&l.message, &r)
	if r.Outcome == Processed {
		p.handled()
	}
	return r.Outcome != Retry, err
}

// handleLetter takes a letter that may be handled at the time at, calls the handler and
// commits both.
func (p *Processor) handleLetter(ctx context.Context, l *letter, at time.Time) (r report, err error) {
	m := &l.message
	took, err := p.transact(ctx, m, transaction{
		before: func(tx pgx.Tx) (bool, error) {
			if err := p.take(ctx, tx, l, at); err != nil {
				return false, err
			}
			r = report{}
			v, err := p.compare(ctx, tx, m, l.lane)
			switch {
			case err != nil:
				return false, err
			case v == stale && !l.due:
				r.Outcome = Stale
				return false, p.settle(ctx, tx, l, "stale")
			case v == gap && l.reason == "gap" && !l.due:
				return false, errNotTaken // the sequence has been put back meanwhile
			case v == gap:
				r.Outcome, r.Reason, r.Gap = Parked, "gap", true
				return false, p.parkLetter(ctx, tx, l)
			}
			// A dead letter was never handled, however far the others are; that it is due is
			// somebody's decision.
			r.Outcome = Processed
			return true, nil
		},
		after: func(tx pgx.Tx) error {
			if err := p.sequenceDone(ctx, tx, m, l.lane); err != nil {
				return err
			}
			return p.settle(ctx, tx, l, "processed")
		},
	})
	r.Duration = took
	return r, err
}

const (
	lockLetter = `SELECT FROM public.cdc_relay_inbox_letter WHERE id = $1 AND state IN ('due', 'parked') FOR UPDATE`
	holdLetter = `UPDATE public.cdc_relay_inbox_letter SET not_before = $2 WHERE id = $1 AND state IN ('due', 'parked')`
)

// letterFailed counts a failure of the handler, and gives the letter a pause or makes it
// dead. The transaction of the handler is over: this is another one, and the letter may
// have come into other hands in between, which is why it is looked at again.
func (p *Processor) letterFailed(ctx context.Context, l *letter, r report, cause error) (report, error) {
	m := &l.message
	r.Outcome, r.Err = Retry, cause
	if p.breaks(m, cause) {
		p.uncount(ctx, m)
		r.after = p.cfg.Breaker.ProbeMax
		_, err := p.cfg.Pool.Exec(ctx, holdLetter, l.id, p.now().Add(r.after))
		return r, err
	}
	reason := "max_deliveries"
	if isPermanent(cause) {
		reason = "permanent"
	}
	_, err := p.transact(ctx, m, transaction{
		before: func(tx pgx.Tx) (bool, error) {
			tag, err := tx.Exec(ctx, lockLetter, l.id)
			if err == nil && tag.RowsAffected() == 0 {
				err = errNotTaken
			}
			if err != nil {
				return false, err
			}
			if r.Attempts, err = p.countIn(ctx, tx, m, cause); err != nil {
				return false, err
			}
			last := reason == "permanent" || r.Attempts >= p.cfg.MaxDeliveries
			if last && p.cfg.Order != Block {
				r.Outcome, r.Reason = DeadLettered, reason
				return false, p.buryLetter(ctx, tx, l, reason, cause, r.Attempts)
			}
			r.after, r.blocked = p.cfg.Backoff.after(r.Attempts), last
			if last {
				r.after = p.cfg.Backoff.Max
			}
			if later, ok := errors.AsType[*retryAfterError](cause); ok {
				r.after = later.after
			}
			_, err = tx.Exec(ctx, holdLetter, l.id, p.now().Add(r.after))
			return false, err
		},
	})
	return r, err
}

// countIn is count in a transaction.
func (p *Processor) countIn(ctx context.Context, tx pgx.Tx, m *Message, cause error) (n int, err error) {
	sql, args := countFailure, []any{p.cfg.Consumer, m.ID, sanitise(cause, m)}
	if p.cfg.CountBefore {
		sql, args = nameFailure, []any{m.ID, p.cfg.Consumer, sanitise(cause, m)}
	}
	if err := tx.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the failure of message %s: %w", m.ID, err)
	}
	return n, nil
}

// countLease is how long a letter that was counted belongs to the runner that counted it:
// the time between two transactions. When the process dies it is tried again afterwards.
const countLease = 10 * time.Second

// A letter's message is settled, as dead or parked, which is no reason to count nothing.
const countLetterDelivery = `INSERT INTO public.cdc_relay_inbox_attempt AS a (message_id, consumer, attempts) VALUES ($1, $2, 1)
	ON CONFLICT (message_id, consumer) DO UPDATE SET attempts = a.attempts + 1, last_failed_at = now() WHERE a.attempts < $3`

// countLetter counts the delivery of a letter before the handler runs. One that has used
// up its deliveries that way has killed the process each time, and is dead.
func (p *Processor) countLetter(ctx context.Context, l *letter) (r report, err error) {
	m := &l.message
	_, err = p.transact(ctx, m, transaction{
		before: func(tx pgx.Tx) (bool, error) {
			if err := p.take(ctx, tx, l, p.now()); err != nil {
				return false, err
			}
			tag, err := tx.Exec(ctx, countLetterDelivery, m.ID, p.cfg.Consumer, p.cfg.MaxDeliveries)
			if err != nil {
				return false, fmt.Errorf("count the delivery of message %s: %w", m.ID, err)
			}
			if tag.RowsAffected() == 0 && p.cfg.Order != Block {
				r.Outcome, r.Reason, r.Attempts = DeadLettered, "crashed", p.cfg.MaxDeliveries
				r.Err = errors.New("the process ended while it handled the message")
				return false, p.buryLetter(ctx, tx, l, r.Reason, r.Err, r.Attempts)
			}
			_, err = tx.Exec(ctx, holdLetter, l.id, p.now().Add(countLease))
			return false, err
		},
	})
	return r, err
}
