package inboxtests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// What a handler fails with of its own is its failure, even if it looks as if the
// database were away: else such a message would be tried for ever.
func TestHandlersOwnFailuresCount(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries = 2 })
	for name, handle := range map[string]inbox.Handler{
		"an empty payload": func(context.Context, pgx.Tx, *inbox.Message) error { return fmt.Errorf("decode: %w", io.EOF) },
		"its own limit": func(ctx context.Context, tx pgx.Tx, _ *inbox.Message) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return err
		},
		"statement_timeout": func(ctx context.Context, tx pgx.Tx, _ *inbox.Message) error {
			_, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '20ms'; SELECT pg_sleep(60)")
			return err
		},
		"a commit of its own": func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			return errors.Join(r.handle(ctx, tx, m), tx.Commit(ctx))
		},
	} {
		p := r.processor(func(c *inbox.Config) { c.Consumer, c.Handler = name, handle })
		r.deliver(p, keyed("m", "k"), inbox.Retry)
		if got := r.deliver(p, keyed("m", "k"), inbox.DeadLettered); got.Attempts != 2 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	r.wantEffects("")
	for _, s := range r.seen.states {
		t.Errorf("said of the database: %+v", s)
	}
}

// A rollback in the handler, as a deferred one, changes nothing; savepoints are its own.
func TestHandlerDoesNotEndTheTransaction(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t)
	p := r.processor(func(c *inbox.Config) {
		c.Handler = func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			defer tx.Rollback(ctx) //nolint:errcheck // that it does nothing is the test
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				return errors.Join(r.handle(ctx, tx, m), errors.New("taken back"))
			})
			if err == nil || !strings.Contains(err.Error(), "taken back") {
				return fmt.Errorf("the savepoint: %w", err)
			}
			return r.handle(ctx, tx, m)
		}
	})
	r.deliver(p, keyed("m", "k"), inbox.Processed)
	r.wantEffects("m")
}

// A connection that ends while the handler works is not the message's fault; and nothing
// of what was done stays.
func TestConnectionLostInHandler(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries = 1 })
	lose := true
	p := r.processor(func(c *inbox.Config) {
		c.Handler = func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			if err := r.handle(ctx, tx, m); err != nil || !lose {
				return err
			}
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		}
	})
	got := r.deliver(p, keyed("m", "k"), inbox.Retry)
	if got.Attempts != 0 || got.After <= 0 {
		t.Errorf("the connection is lost: %+v", got)
	}
	r.wantNoAttempt("m")
	r.wantEffects("")
	r.wantOutcome("m", "")
	lose = false
	r.deliver(p, keyed("m", "k"), inbox.Processed)
	r.wantEffects("m")
}

// Two instances have the same message: the one that was thought dead fails late, when the
// other has settled it. It is told so, and makes no dead letter of what was handled.
func TestLateFailureOfAnotherInstance(t *testing.T) {
	t.Parallel()
	for _, countBefore := range []bool{false, true} {
		r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries, c.CountBefore = 1, countBefore })
		if countBefore {
			r.cfg.MaxDeliveries = 2 // both count before either ends
		}
		working, goOn := make(chan struct{}), make(chan struct{})
		late := r.processor(func(c *inbox.Config) {
			c.Handler = func(context.Context, pgx.Tx, *inbox.Message) error {
				close(working)
				<-goOn
				return inbox.Permanent(errors.New("too late"))
			}
		})
		outcome := make(chan inbox.Outcome, 2)
		go func() { outcome <- late.Process(context.Background(), keyed("m", "k")).Outcome }()
		<-working
		// The other's claim waits for the first's transaction, which fails and rolls back:
		// either of them may settle the message, and only one does.
		go func() { outcome <- r.processor().Process(context.Background(), keyed("m", "k")).Outcome }()
		close(goOn)
		one, other := <-outcome, <-outcome
		settled := r.outcome("m")
		switch {
		case settled == "processed" && (one == inbox.Processed) != (other == inbox.Processed):
			r.wantEffects("m")
			r.wantLetter("m", "")
		case settled == "dead" && (one == inbox.DeadLettered) != (other == inbox.DeadLettered):
			r.wantEffects("")
			r.wantLetter("m", "dead permanent blocks")
		default:
			t.Errorf("outcomes %v and %v, settled as %q", one, other, settled)
		}
		// Whatever was counted too late goes with the next copy.
		r.deliver(r.processor(), keyed("m", "k"), inbox.Duplicate)
		r.wantNoAttempt("m")
	}
}
