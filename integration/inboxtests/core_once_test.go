package inboxtests

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // a driver for database/sql

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// Twenty claim a message at the same moment: one is the first. At READ COMMITTED the others
// are told so and can go on with their transaction; at stricter levels some have to run it
// again.
func TestOnceIsOnce(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t)
	for _, level := range levels {
		const rounds, claimers = 10, 20
		for round := range rounds {
			id := string(level) + strconv.Itoa(round)
			var firsts, conflicts int
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range claimers {
				wg.Go(func() {
					first, err := claimAndInsert(t.Context(), r, level, id)
					mu.Lock()
					defer mu.Unlock()
					pe, _ := errors.AsType[*pgconn.PgError](err)
					switch {
					case err == nil && first:
						firsts++
					case err == nil:
					case pe != nil && pe.Code == "40001" && level != pgx.ReadCommitted:
						conflicts++
					default:
						t.Errorf("%s: %v", level, err)
					}
				})
			}
			wg.Wait()
			if firsts != 1 {
				t.Errorf("%s: %d of %d were the first", level, firsts, claimers)
			}
			if n := r.Text("SELECT count(*) FROM effect WHERE message_id = $1", id); n != "1" {
				t.Errorf("%s: %s effects", level, n)
			}
		}
	}
}

// claimAndInsert claims a message, has an effect if it is the first, and in any case uses
// the transaction once more.
func claimAndInsert(ctx context.Context, r *runnerRig, level pgx.TxIsoLevel, id string) (first bool, err error) {
	err = pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		if first, err = inbox.Once(ctx, tx, "shipping", id); err != nil {
			return err
		}
		if first {
			if _, err := tx.Exec(ctx, "INSERT INTO effect (message_id, consumer) VALUES ($1, 'shipping')", id); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	})
	return first, err
}

// The same through database/sql. A claim that is rolled back is none.
func TestOnceSQL(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t)
	db, err := sql.Open("pgx", r.URL)
	r.must(err)
	defer db.Close()
	claim := func(consumer string, end func(*sql.Tx) error) bool {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil)
		r.must(err)
		first, err := inbox.OnceSQL(t.Context(), tx, consumer, "1")
		r.must(err)
		r.must(end(tx))
		return first
	}
	for i, step := range []struct {
		consumer string
		end      func(*sql.Tx) error
		want     bool
	}{
		{"shipping", (*sql.Tx).Rollback, true},
		{"shipping", (*sql.Tx).Commit, true},
		{"shipping", (*sql.Tx).Commit, false},
		{"billing", (*sql.Tx).Commit, true},
	} {
		if got := claim(step.consumer, step.end); got != step.want {
			t.Errorf("step %d: first is %v, want %v", i+1, got, step.want)
		}
	}
}

// Copies of a message that arrive together have one effect at every level, and nobody is
// told of a failure.
func TestCopiesAtOnce(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t)
	for _, level := range levels {
		var first sync.Once
		p := r.processor(func(c *inbox.Config) {
			c.Consumer, c.TxOptions.IsoLevel = string(level), level
			c.Handler = func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
				first.Do(r.untilSomebodyWaits)
				return r.handle(ctx, tx, m)
			}
		})
		const copies = 20
		outcomes := map[inbox.Outcome]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range copies {
			wg.Go(func() {
				got := p.Process(t.Context(), keyed("m", "k"))
				mu.Lock()
				defer mu.Unlock()
				outcomes[got.Outcome]++
				if got.Err != nil {
					t.Errorf("%s: %v", level, got.Err)
				}
			})
		}
		wg.Wait()
		if outcomes[inbox.Processed] != 1 || outcomes[inbox.Duplicate] != copies-1 {
			t.Errorf("%s: outcomes %v", level, outcomes)
		}
	}
	if n := r.Text("SELECT count(*) FROM public.cdc_relay_inbox_attempt"); n != "0" {
		t.Errorf("%s attempts are counted", n)
	}
}

// untilSomebodyWaits keeps a handler at work until another transaction waits for the end of this one.
func (r *runnerRig) untilSomebodyWaits() {
	r.t.Helper()
	testenv.Until(r.t, runnerPatience, func(ctx context.Context) error {
		waiting, err := testenv.TextAt(ctx, r.URL, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`)
		if err == nil && waiting != "true" {
			err = errors.New("no transaction waits for another")
		}
		return err
	})
}
