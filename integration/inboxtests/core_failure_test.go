package inboxtests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A message that fails again and again is a dead letter after MaxDeliveries, whole, with
// an error that does not repeat its payload, and without any effect.
func TestDeadAfterMaxDeliveries(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries = 3 })
	p := r.processor()
	m := keyed("m", "k", "aggregateversion", "4")
	r.fail(fmt.Errorf("cannot read %s: line 1\nsecond", m.Value), "m")
	for n := 1; n <= 2; n++ {
		if got := r.deliver(p, m, inbox.Retry); got.Attempts != n || got.After <= 0 || got.Err == nil {
			t.Errorf("delivery %d: %+v", n, got)
		}
	}
	if got := r.deliver(p, m, inbox.DeadLettered); got.Attempts != 3 || got.Err == nil {
		t.Errorf("the last delivery: %+v", got)
	}
	r.wantOutcome("m", "dead")
	r.wantLetter("m", "dead max_deliveries blocks")
	r.wantNoAttempt("m")
	r.wantEffects("")
	if got := r.Text("SELECT error FROM public.cdc_relay_inbox_letter"); got != "cannot read …: line 1 second" {
		t.Errorf("the error is kept as %q", got)
	}
	kept := r.Text(`SELECT concat_ws('|', topic, partition, record_offset, convert_from(record_key, 'UTF8'), convert_from(value, 'UTF8'),
		array_length(header_names, 1), encode(header_values[3], 'hex'), type, version, deliveries, extract(epoch FROM record_time)::bigint,
		lane = public.cdc_inbox_lane(topic, record_key)) FROM public.cdc_relay_inbox_letter`)
	if want := "orders|3|7|k|value of m|4|00ff|OrderPlaced|4|3|1700000000|t"; kept != want {
		t.Errorf("kept %s, want %s", kept, want)
	}
	r.deliver(p, m, inbox.Duplicate)
}

func TestKindsOfFailure(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t)
	p := r.processor()
	r.fail(inbox.Permanent(errors.New("no such kind")), "permanent")
	r.deliver(p, keyed("permanent", "a"), inbox.DeadLettered)
	r.wantLetter("permanent", "dead permanent blocks")

	r.fail(inbox.RetryAfter(errors.New("busy"), 7*time.Minute), "later")
	if got := r.deliver(p, keyed("later", "b"), inbox.Retry); got.After != 7*time.Minute || got.Attempts != 1 {
		t.Errorf("RetryAfter: %+v", got)
	}
	r.fail(nil, "later")
	r.deliver(p, keyed("later", "b"), inbox.Processed)
	r.wantNoAttempt("later")

	var log strings.Builder
	loud := r.processor(func(c *inbox.Config) {
		c.Consumer, c.MaxDeliveries, c.Logger = "loud", 1, slog.New(slog.NewTextHandler(&log, nil))
		c.Handler = func(context.Context, pgx.Tx, *inbox.Message) error { panic(fmt.Sprintf("secret %d", 42)) }
	})
	got := loud.Process(t.Context(), keyed("panic", "c"))
	if got.Outcome != inbox.DeadLettered || got.Err == nil || got.Err.Error() != "panic: string" {
		t.Errorf("a panic: %+v", got)
	}
	if s := log.String(); !strings.Contains(s, "core_failure_test.go") || strings.Contains(s, "secret") {
		t.Errorf("a panic is logged as %s", s)
	}

	// An error of the transaction that the handler keeps to itself.
	quiet := r.processor(func(c *inbox.Config) {
		c.Consumer = "quiet"
		c.Handler = func(ctx context.Context, tx pgx.Tx, _ *inbox.Message) error {
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		}
	})
	if got := quiet.Process(t.Context(), keyed("quiet", "d")); got.Outcome != inbox.Retry || got.Attempts != 1 {
		t.Errorf("an error kept quiet: %+v", got)
	}

	// A record without id has an identity all the same.
	nameless := keyed("", "e")
	if got := p.Process(t.Context(), nameless); got.Outcome != inbox.DeadLettered {
		t.Errorf("a record without id: %+v", got)
	}
	r.wantLetter("orders/3/7", "dead no_id blocks")
	r.deliver(p, &inbox.Message{ID: "a\x00b" + strings.Repeat("x", 5000), Topic: "t"}, inbox.Processed)
}

func TestOrderPolicies(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries = 1 })
	poison := inbox.Permanent(errors.New("not json"))
	r.fail(poison, "1")

	park := r.processor(func(c *inbox.Config) { c.Consumer = "park" })
	r.deliver(park, keyed("1", "k"), inbox.DeadLettered)
	r.deliver(park, keyed("2", "k"), inbox.Parked)
	r.deliver(park, keyed("3", "other"), inbox.Processed)
	r.deliver(park, keyed("4", ""), inbox.Processed)
	r.deliver(park, keyed("2", "k"), inbox.Duplicate)

	skip := r.processor(func(c *inbox.Config) { c.Consumer, c.Order = "skip", inbox.Skip })
	r.deliver(skip, keyed("1", "k"), inbox.DeadLettered)
	r.deliver(skip, keyed("2", "k"), inbox.Processed)

	block := r.processor(func(c *inbox.Config) { c.Consumer, c.Order = "block", inbox.Block })
	for range 3 {
		if got := r.deliver(block, keyed("1", "k"), inbox.Retry); !got.Blocked || got.After != 10*time.Millisecond {
			t.Errorf("blocked: %+v", got)
		}
	}
	r.fail(nil, "1")
	r.deliver(block, keyed("1", "k"), inbox.Processed)
}

// A message that ends the process each time is a dead letter too, when deliveries are
// counted before. What passes by itself is not counted.
func TestCountBefore(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries, c.CountBefore = 3, true })
	p := r.processor()
	attempts := func(id string) string {
		return r.Text("SELECT attempts FROM public.cdc_relay_inbox_attempt WHERE message_id = $1", id)
	}
	// A handler that never returns is what a killed process leaves: counted, not ended.
	crashing, crash := context.WithCancel(t.Context())
	hung := make(chan struct{})
	killed := r.processor(func(c *inbox.Config) {
		c.Handler = func(context.Context, pgx.Tx, *inbox.Message) error {
			hung <- struct{}{}
			<-crashing.Done()
			return errors.New("the end")
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { killed.Process(t.Context(), keyed("killer", "k")) })
	<-hung
	if got := attempts("killer"); got != "1" {
		t.Errorf("%s deliveries are counted while the handler runs, want 1", got)
	}
	crash()
	wg.Wait()

	r.Exec("UPDATE public.cdc_relay_inbox_attempt SET attempts = 3, error = NULL WHERE message_id = 'killer'")
	r.deliver(p, keyed("killer", "k"), inbox.DeadLettered)
	r.wantLetter("killer", "dead crashed blocks")
	if n := r.handled("killer"); n != 0 {
		t.Errorf("the handler was called %d times", n)
	}

	r.deliver(p, keyed("good", "g"), inbox.Processed)
	r.deliver(p, keyed("good", "g"), inbox.Duplicate)
	r.wantNoAttempt("good")
	stopped, stop := context.WithCancel(t.Context())
	brokenOff := r.processor(func(c *inbox.Config) {
		c.Handler = func(ctx context.Context, _ pgx.Tx, _ *inbox.Message) error {
			stop()
			return ctx.Err()
		}
	})
	for range 2 { // in the handler, and before it begins
		if got := brokenOff.Process(stopped, keyed("broken off", "h")); got.Outcome != inbox.Retry {
			t.Errorf("broken off: %+v", got)
		}
		if got := attempts("broken off"); got != "" && got != "0" {
			t.Errorf("a delivery that was broken off counts %s", got)
		}
	}
}

// What PostgreSQL says of itself, or of another transaction, in the handler's statements is no
// failure of the message, however often it is met.
func TestNotTheMessagesFault(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries = 1 })
	for _, c := range []struct{ what, state string }{
		{"serialization failure", "40001"}, {"deadlock", "40P01"}, {"disk full", "53100"}, {"shutdown", "57P01"}, {"read only", "25006"},
	} {
		p := r.processor(func(cfg *inbox.Config) {
			cfg.Handler = func(ctx context.Context, tx pgx.Tx, _ *inbox.Message) error {
				_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '"+c.state+"'; END $$")
				return fmt.Errorf("write the effect: %w", err)
			}
		})
		if got := r.deliver(p, keyed(c.state, c.state), inbox.Retry); got.Attempts != 0 || got.After <= 0 {
			t.Errorf("%s: %+v", c.what, got)
		}
		r.wantNoAttempt(c.state)
	}
}

// While the database is away nothing is lost, dropped or counted, and one line says so.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, err := localstack.StartPostgres(ctx, localstack.PostgresConfig{Major: testenv.Major(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	r := newRunnerRig(t)
	r.must(migrateInbox(ctx, server.URL("postgres")))
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	r.must(err)
	defer pool.Close()
	var log strings.Builder
	p := r.processor(func(c *inbox.Config) {
		c.Pool, c.MaxDeliveries, c.Logger = pool, 1, slog.New(slog.NewTextHandler(&log, nil))
		c.Handler = func(ctx context.Context, tx pgx.Tx, _ *inbox.Message) error {
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		}
	})
	r.deliver(p, keyed("before", "k"), inbox.Processed)
	r.must(server.Stop(ctx, localstack.Fast))
	for range 5 {
		if got := r.deliver(p, keyed("m", "k"), inbox.Retry); got.Attempts != 0 || got.After <= 0 || got.Err == nil {
			t.Errorf("while the database is away: %+v", got)
		}
	}
	r.must(server.Start(ctx))
	testenv.Until(t, runnerPatience, func(ctx context.Context) error {
		if got := p.Process(ctx, keyed("m", "k")); got.Outcome != inbox.Processed {
			return fmt.Errorf("%v: %w", got.Outcome, got.Err)
		}
		return nil
	})
	testenv.Until(t, runnerPatience, func(context.Context) error { // over when nothing has failed for a second
		r.deliver(p, keyed("m", "k"), inbox.Duplicate)
		if lines := strings.Count(log.String(), "\n"); lines != 2 {
			return fmt.Errorf("%d lines, want one for each change of state:\n%s", lines, log.String())
		}
		return nil
	})
}

// When everything fails over different keys it is not the messages' fault: none is given
// up, and one success ends it.
func TestBreaker(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t, func(c *inbox.Config) {
		c.MaxDeliveries = 100
		c.Breaker = inbox.Breaker{Failures: 6, Keys: 3, Probe: time.Millisecond, ProbeMax: 2 * time.Millisecond}
	})
	p := r.processor(func(c *inbox.Config) { c.MaxDeliveries = 2 })
	ids := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	r.fail(errors.New("the dependency is down"), ids...)
	for range 5 {
		for _, id := range ids {
			p.Process(t.Context(), keyed(id, id))
		}
	}
	if n := r.Text("SELECT count(*) FROM public.cdc_relay_inbox_letter"); n != "0" {
		t.Errorf("%s messages were given up", n)
	}
	r.fail(nil, ids...)
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { r.deliverTo(p, keyed(id, id), inbox.Processed) })
	}
	wg.Wait()
}

// deliverTo is deliver for another goroutine.
func (r *runnerRig) deliverTo(p *inbox.Processor, m *inbox.Message, want inbox.Outcome) {
	if got := p.Process(r.t.Context(), m); got.Outcome != want {
		r.t.Errorf("message %s is %v (%v), want %v", m.ID, got.Outcome, got.Err, want)
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := newRunnerRig(t)
	r.must(r.processor().Check(t.Context()))
	r.Exec("DROP TABLE public.cdc_relay_inbox_sequence")
	if err := r.processor().Check(t.Context()); err == nil || !strings.Contains(err.Error(), "public.cdc_relay_inbox_sequence") ||
		!strings.Contains(err.Error(), "migrate up") {
		t.Errorf("Check = %v", err)
	}
}
