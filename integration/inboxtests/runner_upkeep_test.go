package inboxtests

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestRunnerTellsOfItself(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries, c.Retention = 5, 48*time.Hour })
	p := r.processor()
	r.fail(inbox.Permanent(errHandler), "a1", "b1", "c1")
	for _, m := range []*inbox.Message{keyed("a1", "a"), keyed("b1", "b"), keyed("c1", "")} {
		r.deliver(p, m, inbox.DeadLettered)
	}
	for _, m := range []*inbox.Message{keyed("a2", "a"), keyed("a3", "a"), keyed("b2", "b")} {
		r.deliver(p, m, inbox.Parked)
	}
	r.fail(errHandler, "d1")
	r.deliver(p, keyed("d1", "d"), inbox.Retry)
	r.deliver(p, keyed("e1", "e"), inbox.Processed)
	r.run(p)
	testenv.Until(t, runnerPatience, func(context.Context) error {
		const sql = `SELECT concat_ws(' ', runner_seen_at > now() - interval '5 minutes', retention, max_deliveries, order_policy, breaker_open)
			FROM public.cdc_relay_inbox_consumer WHERE consumer = 'shipping'`
		if got, want := r.Text(sql), "t 48:00:00 5 park f"; got != want {
			return fmt.Errorf("the consumer says %q, want %q", got, want)
		}
		r.seen.mu.Lock()
		defer r.seen.mu.Unlock()
		if len(r.seen.counts) == 0 {
			return errors.New("nothing was counted")
		}
		c := r.seen.counts[0]
		if c.OldestDead.IsZero() || c.OldestParked.IsZero() || c.OldestSettled.IsZero() {
			return fmt.Errorf("counts %+v, want three times", c)
		}
		c.OldestDead, c.OldestParked, c.OldestSettled = time.Time{}, time.Time{}, time.Time{}
		if want := (inbox.Counts{Consumer: "shipping", DeadLetters: 3, Parked: 3, ParkedKeys: 2, Attempts: 1}); c != want {
			return fmt.Errorf("counts %+v, want %+v", c, want)
		}
		return nil
	})
}

func TestPruneDeletesWhatIsPastTheRetention(t *testing.T) {
	var ahead atomic.Int64
	r := newRunnerRig(t, func(c *inbox.Config) {
		c.Retention = 48 * time.Hour
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	p := r.processor()
	r.fail(inbox.Permanent(errHandler), "dead", "discarded", "replayed")
	for _, id := range []string{"dead", "discarded", "replayed"} {
		r.deliver(p, keyed(id, id), inbox.DeadLettered)
	}
	r.deliver(p, keyed("parked", "dead"), inbox.Parked)
	r.discard("discarded")
	r.fail(nil, "replayed")
	r.replay("replayed")
	stop := r.run(p)
	r.untilLetter("replayed", "processed permanent blocks")
	stop()
	// More than two batches, and those of another consumer.
	r.Exec(`INSERT INTO public.cdc_relay_inbox (message_id, consumer)
		SELECT n::text, c FROM generate_series(1, 2500) n, unnest('{shipping,billing}'::text[]) c`)
	ctx := t.Context()
	if n, err := p.Prune(ctx); n != 0 || err != nil {
		t.Fatalf("within the retention Prune = %d, %v", n, err)
	}
	ahead.Store(int64(72 * time.Hour))
	if n, err := p.Prune(ctx); n != 2502 || err != nil {
		t.Errorf("Prune = %d, %v, want 2502 (two of them were letters)", n, err)
	}
	if got, want := r.Text("SELECT string_agg(message_id || ' ' || outcome, ', ' ORDER BY message_id) FROM public.cdc_relay_inbox WHERE consumer = 'shipping'"),
		"dead dead, parked parked"; got != want {
		t.Errorf("left are %q, want %q", got, want)
	}
	if n := r.Text("SELECT count(*) FROM public.cdc_relay_inbox WHERE consumer = 'billing'"); n != "2500" {
		t.Errorf("%s messages of another consumer are left, want 2500", n)
	}
	if got, want := r.Text("SELECT string_agg(message_id, ' ' ORDER BY id) FROM public.cdc_relay_inbox_letter"), "dead parked"; got != want {
		t.Errorf("letters %q are left, want %q", got, want)
	}
	// Forever: nothing is deleted, however old.
	keep := r.processor(func(c *inbox.Config) { c.Consumer, c.Retention = "billing", -1 })
	if n, err := keep.Prune(ctx); n != 0 || err != nil {
		t.Errorf("Prune = %d, %v, want none", n, err)
	}
}

func TestOnePrunerOfAConsumerAtATime(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) {
		c.Now = func() time.Time { return time.Now().Add(30 * 24 * time.Hour) }
	})
	p := r.processor()
	r.Exec("INSERT INTO public.cdc_relay_inbox (message_id, consumer) SELECT n::text, 'shipping' FROM generate_series(1, 10) n")
	other := r.Conn()
	tx, err := other.Begin(t.Context())
	r.must(err)
	_, err = tx.Exec(t.Context(), "SELECT public.cdc_inbox_prune('shipping', now() - interval '1 day')")
	r.must(err)
	if n, err := p.Prune(t.Context()); n != 0 || err != nil {
		t.Errorf("beside another pruner Prune = %d, %v, want none", n, err)
	}
	r.must(tx.Rollback(t.Context()))
	if n, err := p.Prune(t.Context()); n != 10 || err != nil {
		t.Errorf("alone Prune = %d, %v, want 10", n, err)
	}
}

// Each delivery is a fresh one after the retention: that is what retention means.
func TestMessageThatComesAfterTheRetentionRunsAgain(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) {
		c.Now = func() time.Time { return time.Now().Add(30 * 24 * time.Hour) }
	})
	p := r.processor()
	r.deliver(p, keyed("1", "a"), inbox.Processed)
	r.deliver(p, keyed("1", "a"), inbox.Duplicate)
	if n, err := p.Prune(t.Context()); n != 1 || err != nil {
		t.Fatalf("Prune = %d, %v, want 1", n, err)
	}
	r.deliver(p, keyed("1", "a"), inbox.Processed)
	r.wantEffects("1 1")
}
