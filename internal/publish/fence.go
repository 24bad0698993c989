package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// refreshEvery is how often the coordinator is asked anew in a long session: it
// forgets a transactional id that nobody asks for (transactional.id.expiration.ms,
// seven days by default), and what it has forgotten fences nobody.
const refreshEvery = 24 * time.Hour

// unfencedPause is how long an earlier process that is not fenced is given to end: its
// last request takes no longer.
const unfencedPause = broker.DefaultRequestTimeout

// nobody is the producer to name when the epoch is to be raised whoever holds it.
func nobody() broker.Producer { return broker.Producer{ID: -1, Epoch: -1} }

// fencing is the state of a transactional id. No transactions are used: the id gives
// each session a higher epoch of one producer id, and from the session's first batch
// on a partition refuses the earlier ones.
type fencing struct {
	wake chan struct{} // cap 1: there may be something to ask
	// session is the one that the producer in use was asked for; nil if it must be
	// asked for anew.
	session *session
	// raise asks for a higher epoch within the session.
	raise     bool
	refreshAt time.Time
	// readAt is when partitions may be read: after an answer that fenced nobody, what
	// an earlier process has under way is waited for.
	readAt  time.Time
	retryAt time.Time // not before; zero is now
}

func (p *Publisher) transactional() bool { return p.cfg.TransactionalID != "" }

// fenced reports whether the coordinator has answered in this session.
func (p *Publisher) fenced() bool { return p.session != nil && p.fence.session == p.session }

// begin has the coordinator asked for a new session. Never before: an instance that
// only waits for the slot would depose the one that holds it.
func (f *fencing) begin() {
	f.retryAt, f.raise = time.Time{}, false
	notify(f.wake)
}

// unfence forgets what kept a session from being fenced. The mutex is held.
func (p *Publisher) unfence() {
	if p.transactional() {
		p.refusal = ""
	}
}

// mayRead reports whether partitions may be read: what an earlier process has sent
// is in them, or will be refused. If not, wait is when to ask again, 0 when the lanes
// are woken. The mutex is held.
func (p *Publisher) mayRead(now time.Time) (wait time.Duration, ok bool) {
	switch {
	case !p.transactional():
		return 0, true
	case !p.fenced():
		return 0, false
	}
	wait = max(0, p.fence.readAt.Sub(now))
	return wait, wait == 0
}

// overtaken notes that a batch of the epoch in use was refused because there is a
// higher one. While the slot is ours that is no takeover: another process uses the
// transactional id. It returns what to tell an operator, nil without such an id, or
// when the slot may not be ours any more. The mutex is held.
func (p *Publisher) overtaken(now time.Time) error {
	if !p.transactional() || !p.alive() {
		return nil
	}
	err := fmt.Errorf("another process uses kafka.transactional_id %q, and partitions refuse this one: give each relay an id of its own", p.cfg.TransactionalID)
	if p.fenced() {
		p.fence.session = nil
		p.fence.retryAt = now.Add(haltPause)
		p.refusal = err.Error()
		notify(p.fence.wake)
	}
	return err
}

// keepFence asks the coordinator once per session, when a lane needs a higher epoch,
// and daily.
func (p *Publisher) keepFence(ctx context.Context) {
	pause := backoff{initial: p.cfg.RetryInitial, max: p.cfg.RetryMax}
	trouble := producerTrouble{log: p.log}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		s, known, wait := p.toAsk(time.Now())
		if s == nil {
			if wait > 0 {
				timer.Reset(wait)
			}
			select {
			case <-p.fence.wake:
			case <-timer.C:
			case <-ctx.Done():
			}
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, initTimeout)
		producer, err := p.broker.InitTransactional(attempt, p.cfg.TransactionalID, known)
		cancel()
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		p.mu.Lock()
		p.health.observe(unanswered(err), now)
		err = p.raised(s, known, producer, err, now)
		switch {
		case err == nil:
			pause.reset()
		case p.fence.retryAt.Before(now):
			p.fence.retryAt = now.Add(pause.next())
		}
		p.mu.Unlock()
		trouble.note(err)
	}
}

// toAsk returns the session for which to ask the coordinator now and the producer to
// name, or how long to wait (0: until woken).
func (p *Publisher) toAsk(now time.Time) (s *session, known broker.Producer, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil {
		return nil, nobody(), 0
	}
	due := p.fence.retryAt
	known = nobody()
	if p.fenced() {
		known = p.producer
		if !p.fence.raise {
			due = later(due, p.fence.refreshAt)
		}
	}
	switch {
	case due.After(now):
		return nil, nobody(), due.Sub(now)
	case !p.alive():
		// To ask now could depose whoever holds the slot.
		return nil, nobody(), alivePoll
	}
	return p.session, known, 0
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// raised takes the coordinator's answer. The mutex is held.
func (p *Publisher) raised(s *session, known, got broker.Producer, err error, now time.Time) error {
	if p.session != s {
		return nil // The session that needs one asks for itself.
	}
	code := kafka.Error(broker.Code(err))
	switch {
	case known.ID >= 0 && (code == kafka.ProducerFenced || code == kafka.InvalidProducerEpoch),
		err == nil && known.ID >= 0 && !follows(known, got):
		if err = p.overtaken(now); err != nil {
			return &haltError{err}
		}
		return nil
	case code == kafka.TransactionalIDAuthorizationFailed:
		p.fence.retryAt = now.Add(haltPause)
		err = &haltError{err}
		fallthrough
	case err != nil:
		if !p.fenced() || p.fence.raise {
			p.refusal = err.Error()
		}
		return err
	}
	p.producer, p.refusal = got, ""
	p.fence.session, p.fence.raise = s, false
	p.fence.refreshAt, p.fence.retryAt = now.Add(refreshEvery), time.Time{}
	if got.Epoch == 0 {
		p.fence.readAt = now.Add(unfencedPause)
		p.log.Warn("kafka knew nothing of kafka.transactional_id, so no earlier process is kept from writing; partitions are read when a request of one must be over",
			slog.String("transactional_id", p.cfg.TransactionalID), slog.Duration("wait", unfencedPause))
	}
	p.wakeLanes()
	return nil
}

// follows reports that no other process was given an epoch between the two. A new id
// with epoch 0 says the same: the coordinator had forgotten the id, or used up its
// epochs. Had it made a new one for somebody else, it would have refused ours.
func follows(known, got broker.Producer) bool {
	return got.ID == known.ID && got.Epoch == known.Epoch+1 || got.ID != known.ID && got.Epoch == 0
}

// haltError is a failure that somebody has to act on.
type haltError struct{ error }

func (e *haltError) Unwrap() error { return e.error }

// note tells of the end of an attempt.
func (t *producerTrouble) note(err error) {
	switch {
	case err == nil:
		t.over()
	case errors.As(err, new(*haltError)):
		t.failed(err, slog.LevelError)
	default:
		t.failed(err, slog.LevelWarn)
	}
}

// unanswered is err unless a broker has answered with it.
func unanswered(err error) error {
	if broker.Code(err) != 0 {
		return nil
	}
	return err
}
