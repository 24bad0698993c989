package inboxtests

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// A pool may send its queries in any of pgx's ways; which ones work behind a pooler in transaction mode depends on the
// pooler. A message goes all its ways in each.
func TestEveryWayToSendQueries(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			r := newRunnerRig(t)
			config, err := pgxpool.ParseConfig(r.URL)
			r.must(err)
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			r.must(err)
			t.Cleanup(pool.Close)
			p := r.processor(func(c *inbox.Config) {
				c.Pool, c.MaxDeliveries, c.CountBefore, c.Sequence = pool, 2, true, inbox.Sequence{Mode: inbox.ByVersion}
			})
			r.must(p.Check(t.Context()))
			r.deliver(p, versioned("1", "a", 1), inbox.Processed)
			r.deliver(p, versioned("1", "a", 1), inbox.Duplicate)
			r.fail(errHandler, "2")
			r.deliver(p, versioned("2", "a", 2), inbox.Retry)
			r.deliver(p, versioned("2", "a", 2), inbox.DeadLettered)
			r.deliver(p, versioned("3", "a", 3), inbox.Parked)
			r.deliver(p, keyed("4", ""), inbox.Processed)
			r.fail(nil, "2")
			r.run(p)
			r.replay("2")
			r.untilLetter("3", "processed behind blocks")
			r.wantEffects("1 4 2 3")
			if n, err := p.Prune(t.Context()); n != 0 || err != nil {
				t.Errorf("Prune = %d, %v", n, err)
			}
		})
	}
}
