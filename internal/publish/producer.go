package publish

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// initTimeout bounds one attempt to get a producer id, which takes a broker
// milliseconds: the next attempt may reach another one.
const initTimeout = 3 * time.Second

// number returns what the next new batch of a partition carries: producer id, epoch
// and the number of its first row. It adopts a raised epoch, so it is called only
// when no batch of the partition is undecided. ok is false while there is nothing to
// send with; the lanes are woken when there is. The mutex is held.
func (p *Publisher) number(s *sequence) (producer int64, epoch int16, first int32, ok bool) {
	switch {
	case !p.mayNumber():
		return 0, 0, 0, false
	case s.producer.ID < 0, p.transactional() && s.producer != p.producer:
		s.adopt(p.producer)
	case s.spent:
		return 0, 0, 0, false
	}
	return s.producer.ID, s.producer.Epoch, s.next, true
}

// mayNumber reports whether there is a producer that new batches may carry.
func (p *Publisher) mayNumber() bool {
	if p.transactional() {
		return p.fenced()
	}
	return p.producer.ID >= 0
}

// raise gives the partition a new epoch, so that what was sent with the present one
// is refused once a batch of the new one is there. false: the epochs are used up.
// The mutex is held.
//
// With a transactional id only its coordinator can do so. Without, it is done here,
// per partition and keeping the producer id, which needs no request: the broker takes
// a higher epoch that starts at number 0, and from then on refuses whatever still
// carries the lower one.
func (p *Publisher) raise(s *sequence) bool {
	switch {
	case s.producer.ID < 0: // Nothing was sent.
	case p.transactional():
		s.spent = true
		if p.fenced() && s.producer == p.producer {
			p.fence.raise = true
			notify(p.fence.wake)
		}
	case s.producer.Epoch == math.MaxInt16:
		return false
	default:
		s.adopt(broker.Producer{ID: s.producer.ID, Epoch: s.producer.Epoch + 1})
	}
	return true
}

// outdated reports that a batch's producer and epoch are not the ones in use any
// more, or that others have been asked for. The mutex is held.
func (p *Publisher) outdated(producer int64, epoch int16, s *sequence) bool {
	used := broker.Producer{ID: producer, Epoch: epoch}
	if s.spent || s.producer != used {
		return true
	}
	return p.transactional() && !(p.fenced() && p.producer == used)
}

// initProducer gets the producer id, without which no lane sends, and with a
// transactional id keeps it.
func (p *Publisher) initProducer(ctx context.Context) {
	if p.transactional() {
		p.keepFence(ctx)
		return
	}
	pause := backoff{initial: p.cfg.RetryInitial, max: p.cfg.RetryMax}
	trouble := producerTrouble{log: p.log}
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, initTimeout)
		producer, err := p.broker.InitProducer(attempt)
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		p.health.observe(err, time.Now())
		if err == nil {
			p.producer, p.refusal = producer, ""
			p.wakeLanes()
			p.mu.Unlock()
			trouble.over()
			return
		}
		p.refusal = err.Error()
		p.mu.Unlock()
		trouble.failed(err, slog.LevelWarn)
		sleep(ctx, pause.next())
	}
}

// wakeLanes has every lane look again. The mutex is held.
func (p *Publisher) wakeLanes() {
	for _, t := range p.topics {
		t.wake()
	}
}

// producerTrouble says that there is no producer id: not at once, since most failures
// are over within a second or two, and then again and again.
type producerTrouble struct {
	log           *slog.Logger
	since, logged time.Time
}

// failed notes a failure. An error, which somebody has to act on, is said at once.
func (t *producerTrouble) failed(err error, level slog.Level) {
	now := time.Now()
	if t.since.IsZero() {
		t.since = now
	}
	first := t.logged.IsZero() && (level == slog.LevelError || now.Sub(t.since) >= patience)
	if first || !t.logged.IsZero() && now.Sub(t.logged) >= remindEvery {
		t.logged = now
		t.log.Log(context.Background(), level, "no producer id, so nothing is sent; trying again", slog.String("reason", err.Error()))
	}
}

// over notes a success.
func (t *producerTrouble) over() {
	if !t.logged.IsZero() {
		t.log.Info("a producer id at last", slog.Duration("after", time.Since(t.since)))
	}
	t.since, t.logged = time.Time{}, time.Time{}
}
