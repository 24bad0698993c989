package inbox

import (
	"context"
	"sync"
	"time"
)

// Run handles what waits in the database until ctx ends, and returns nil then: dead
// letters that were replayed, and parked messages that nothing keeps back any more, in
// the order of their keys. It also prunes, says that the consumer has a runner, and
// counts for the observer. Any number of processes may run the same consumer: they share
// the work. While the database is away it waits.
//
// A parked message, and a dead letter that somebody has replayed, waits for ever without
// a runner. inboxkafka.Run has one.
func (p *Processor) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { p.poll(ctx) })
	wg.Go(func() { p.every(ctx, heartbeatEvery, true, p.heartbeat) })
	wg.Go(func() { p.every(ctx, countEvery, true, p.tellCounts) })
	// Not at once: a process that restarts again and again has other things to do, and
	// one that was down for long has late copies to recognise first.
	wg.Go(func() { p.every(ctx, pruneEvery, false, p.pruneAndTell) })
	wg.Wait()
	return nil
}

// pollShare bounds the load of looking: a look takes at most this part of the time until
// the next.
const pollShare = 10

// poll handles what is due, and looks again after a pause.
func (p *Processor) poll(ctx context.Context) {
	for {
		wait, err := p.drain(ctx)
		if err != nil {
			wait = max(wait, p.unavailable(ctx, report{}, err).after)
		}
		if pause(ctx, max(wait, p.cfg.PollInterval)) != nil {
			return
		}
	}
}

// drain handles letters until none is left that may be handled, and returns how long to
// leave the database alone afterwards. An error says that the database cannot be used.
func (p *Processor) drain(ctx context.Context) (wait time.Duration, err error) {
	for {
		start := time.Now()
		ids, err := p.findLetters(ctx)
		wait = pollShare * time.Since(start)
		if err != nil {
			return wait, err
		}
		p.back()
		moved := false
		for _, id := range ids {
			settled, err := p.drainLane(ctx, id)
			if err != nil || ctx.Err() != nil {
				return wait, err
			}
			moved = moved || settled
		}
		if !moved {
			return wait, nil
		}
	}
}

// drainLane handles a letter and what waits behind it, and reports whether any of it is
// out of the way.
func (p *Processor) drainLane(ctx context.Context, id int64) (moved bool, err error) {
	for id != 0 {
		gone, err := p.redeliver(ctx, id)
		if err != nil || !gone {
			return moved, err
		}
		moved = true
		if id, err = p.nextOfLane(ctx, id); err != nil {
			return moved, err
		}
	}
	return moved, nil
}
