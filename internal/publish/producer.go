package publish

import (
	"context"
	"log/slog"
	"time"
)

// initTimeout bounds one attempt to get a producer id, which takes a broker
// milliseconds: the next attempt may reach another one.
const initTimeout = 3 * time.Second

// number returns what the next new batch of a partition carries: producer id, epoch
// and the number of its first row. It adopts a raised epoch, so it is called only
// when no batch of the partition is undecided. ok is false while there is nothing to
// send with; the lanes are woken when there is. The mutex is held.
func (p *Publisher) number(s *sequence) (producer int64, epoch int16, first int32, ok bool) {
	if p.producer.ID < 0 {
		return 0, 0, 0, false
	}
	return p.producer.ID, p.producer.Epoch + s.epoch, s.next, true
}

// raise gives the partition a new epoch, so that what was sent with the present one
// is refused once a batch of the new one is there. false: the epochs are used up.
// The mutex is held.
func (p *Publisher) raise(s *sequence) bool { return s.raise() }

// outdated reports that a batch's producer and epoch are not the ones in use any
// more, or that others have been asked for. The mutex is held.
func (p *Publisher) outdated(producer int64, epoch int16, s *sequence) bool {
	return producer != p.producer.ID || epoch != p.producer.Epoch+s.epoch
}

// mayRead reports whether partitions may be read: what an earlier process has sent
// is in them, or will be refused. If not, wait is when to ask again, 0 when the lanes
// are woken. The mutex is held.
func (p *Publisher) mayRead(time.Time) (wait time.Duration, ok bool) { return 0, true }

// initProducer gets the producer id, without which no lane sends.
func (p *Publisher) initProducer(ctx context.Context) {
	pause := backoff{initial: p.cfg.RetryInitial, max: p.cfg.RetryMax}
	began, logged := time.Now(), time.Time{}
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, initTimeout)
		producer, err := p.broker.InitProducer(attempt)
		cancel()
		p.mu.Lock()
		p.health.observe(err, time.Now())
		if err == nil {
			p.producer, p.refusal = producer, ""
			for _, t := range p.topics {
				t.wake()
			}
			p.mu.Unlock()
			if !logged.IsZero() {
				p.log.Info("a producer id at last", slog.Duration("after", time.Since(began)))
			}
			return
		}
		p.refusal = err.Error()
		p.mu.Unlock()
		if now := time.Now(); now.Sub(began) >= patience && now.Sub(logged) >= remindEvery && ctx.Err() == nil {
			logged = now
			p.log.Warn("no producer id, so nothing is sent; trying again", slog.String("reason", err.Error()))
		}
		sleep(ctx, pause.next())
	}
}
