package inbox

import (
	"context"
	"fmt"
	"time"
)

const (
	pruneEvery = time.Hour
	// pruneBatch bounds how many rows one transaction deletes: a long one keeps vacuum
	// from its work and locks what copies of the messages wait for.
	pruneBatch = 1000
)

const (
	pruneSettled = `SELECT public.cdc_inbox_prune($1, $2, $3)`
	// What was a dead letter or parked keeps its record as long as the message is
	// remembered. Those of others are not touched, and two pruners share the work.
	pruneLetters = `DELETE FROM public.cdc_relay_inbox_letter WHERE id IN (
		SELECT id FROM public.cdc_relay_inbox_letter
		 WHERE consumer = $1 AND state IN ('processed', 'discarded') AND changed_at < $2
		 ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)`
	// A message that was never delivered again after it had failed (its topic's retention
	// is over) leaves its count behind.
	pruneAttempts = `DELETE FROM public.cdc_relay_inbox_attempt WHERE (message_id, consumer) IN (
		SELECT message_id, consumer FROM public.cdc_relay_inbox_attempt
		 WHERE consumer = $1 AND last_failed_at < $2
		 ORDER BY message_id LIMIT $3 FOR UPDATE SKIP LOCKED)`
)

// Prune deletes what is older than the retention and returns the number of settled
// messages among it: those that come again afterwards run again. It works in transactions
// of at most 1,000 rows; while another pruner of the consumer is at work it deletes none.
// Dead and parked messages stay. [Processor.Run] prunes every hour; Prune is for those
// who do not run it.
func (p *Processor) Prune(ctx context.Context) (int64, error) {
	if p.cfg.Retention < 0 {
		return 0, nil
	}
	before := p.now().Add(-p.cfg.Retention)
	// Letters first: one that outlived its settled message would be in the way when the
	// message comes again and fails again.
	for _, sql := range []string{pruneLetters, pruneAttempts} {
		for {
			tag, err := p.cfg.Pool.Exec(ctx, sql, p.cfg.Consumer, before, pruneBatch)
			if err != nil {
				return 0, fmt.Errorf("prune letters and attempts: %w", err)
			}
			if tag.RowsAffected() < pruneBatch {
				break
			}
		}
	}
	var pruned int64
	for {
		var n *int64
		if err := p.cfg.Pool.QueryRow(ctx, pruneSettled, p.cfg.Consumer, before, pruneBatch).Scan(&n); err != nil {
			return pruned, fmt.Errorf("prune settled messages: %w", err)
		}
		if n == nil { // another pruner is at work
			return pruned, nil
		}
		if pruned += *n; *n < pruneBatch {
			return pruned, nil
		}
	}
}
