package inbox

import (
	"context"
	"fmt"
	"time"
)

const (
	heartbeatEvery = 5 * time.Second
	countEvery     = 15 * time.Second
)

// The breaker is that of the process which wrote last: what makes it open is outside, and
// all processes of a consumer see it.
const putHeartbeat = `INSERT INTO public.cdc_relay_inbox_consumer AS c
	    (consumer, runner_seen_at, retention, max_deliveries, order_policy, breaker_open)
	VALUES ($1, now(), $2, $3, $4, $5)
	ON CONFLICT (consumer) DO UPDATE SET runner_seen_at = excluded.runner_seen_at, retention = excluded.retention,
	    max_deliveries = excluded.max_deliveries, order_policy = excluded.order_policy, breaker_open = excluded.breaker_open`

// heartbeat says that the consumer has a runner, and what its settings are, to those who
// look from outside.
func (p *Processor) heartbeat(ctx context.Context) error {
	var retention *time.Duration
	if p.cfg.Retention >= 0 {
		retention = &p.cfg.Retention
	}
	_, err := p.cfg.Pool.Exec(ctx, putHeartbeat, p.cfg.Consumer, retention, p.cfg.MaxDeliveries, p.cfg.Order.String(), p.breakerOpen())
	if err != nil {
		return fmt.Errorf("write cdc_relay_inbox_consumer: %w", err)
	}
	return nil
}

// Dead and parked messages are not pruned and tell nothing of the pruner.
const countAll = `SELECT l.dead, l.parked, l.keys, l.due,
	    (SELECT count(*) FROM public.cdc_relay_inbox_attempt a WHERE a.consumer = $1) AS attempts,
	    l.oldest_dead, l.oldest_parked,
	    (SELECT min(i.settled_at) FROM public.cdc_relay_inbox i
	      WHERE i.consumer = $1 AND i.outcome NOT IN ('dead', 'parked')) AS oldest_settled
	  FROM (SELECT count(*) FILTER (WHERE state = 'dead') AS dead,
	               count(*) FILTER (WHERE state = 'parked') AS parked,
	               count(DISTINCT lane) FILTER (WHERE state = 'parked') AS keys,
	               count(*) FILTER (WHERE state = 'due') AS due,
	               min(created_at) FILTER (WHERE state = 'dead') AS oldest_dead,
	               min(created_at) FILTER (WHERE state = 'parked') AS oldest_parked
	          FROM public.cdc_relay_inbox_letter
	         WHERE consumer = $1 AND state IN ('dead', 'parked', 'due')) l`

// tellCounts tells the observer what the database knows.
func (p *Processor) tellCounts(ctx context.Context) error {
	c := Counts{Consumer: p.cfg.Consumer}
	var oldestDead, oldestParked, oldestSettled *time.Time
	err := p.cfg.Pool.QueryRow(ctx, countAll, p.cfg.Consumer).Scan(&c.DeadLetters, &c.Parked, &c.ParkedKeys, &c.Due, &c.Attempts,
		&oldestDead, &oldestParked, &oldestSettled)
	if err != nil {
		return fmt.Errorf("count dead letters and parked messages: %w", err)
	}
	for to, from := range map[*time.Time]*time.Time{&c.OldestDead: oldestDead, &c.OldestParked: oldestParked, &c.OldestSettled: oldestSettled} {
		if from != nil {
			*to = *from
		}
	}
	p.cfg.Observer.Counted(c)
	return nil
}

// pruneAndTell deletes what is past the retention and tells the observer how much.
func (p *Processor) pruneAndTell(ctx context.Context) error {
	if p.cfg.Retention < 0 {
		return nil
	}
	n, err := p.Prune(ctx)
	if n > 0 || err == nil {
		p.cfg.Observer.Pruned(n)
	}
	return err
}

// every does something again and again until ctx ends. A failure is logged when the last
// time was none; that the database is away is said elsewhere.
func (p *Processor) every(ctx context.Context, pause time.Duration, atOnce bool, do func(context.Context) error) {
	said := false
	if atOnce {
		said = p.upkeep(ctx, said, do)
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			said = p.upkeep(ctx, said, do)
		case <-ctx.Done():
			return
		}
	}
}

// upkeep does something once and returns whether its failure is said.
func (p *Processor) upkeep(ctx context.Context, said bool, do func(context.Context) error) bool {
	err := do(ctx)
	switch {
	case ctx.Err() != nil:
		return said
	case err == nil:
		return false
	case !said && !isAway(err):
		p.cfg.Logger.Warn("inbox upkeep failed, and is tried again", "consumer", p.cfg.Consumer, "err", err)
		return true
	}
	return said
}
