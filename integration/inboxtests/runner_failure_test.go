package inboxtests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestRunnerCountsBeforeTheHandler(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) { c.CountBefore, c.MaxDeliveries = true, 3 })
	p := r.processor()
	ids := []string{"killer", "survivor", "failing"}
	r.fail(inbox.Permanent(errHandler), ids...)
	for _, id := range ids {
		r.deliver(p, keyed(id, id), inbox.DeadLettered)
	}
	r.fail(nil, "killer", "survivor")
	r.fail(errHandler, "failing")
	r.replay(ids...)
	// What processes leave behind that died in the handler, three times and twice.
	r.Exec("INSERT INTO public.cdc_relay_inbox_attempt (message_id, consumer, attempts) VALUES ('killer', 'shipping', 3), ('survivor', 'shipping', 2)")
	r.run(p)
	r.untilLetter("killer", "dead crashed blocks")
	r.untilLetter("survivor", "processed permanent blocks")
	r.untilLetter("failing", "dead max_deliveries blocks")
	if n := r.handled("killer"); n != 1 {
		t.Errorf("the handler had the one that kills %d times, want only the first", n)
	}
	if n := r.handled("failing"); n != 4 {
		t.Errorf("the handler had the failing one %d times, want one and the three of the replay", n)
	}
	for _, id := range ids {
		r.wantNoAttempt(id)
	}
	r.wantEffects("survivor")
}

func TestRunnerStopsAtTheBreakerInsteadOfGivingUp(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) {
		c.MaxDeliveries = 2
		c.Breaker = inbox.Breaker{Failures: 5, Keys: 3, Probe: 10 * time.Millisecond, ProbeMax: 20 * time.Millisecond}
	})
	var ids []string
	for i := range 6 {
		ids = append(ids, strconv.Itoa(i))
	}
	r.fail(inbox.Permanent(errHandler), ids...)
	// A processor of its own each time: together they would open the breaker now.
	for _, id := range ids {
		r.deliver(r.processor(), keyed(id, "key "+id), inbox.DeadLettered)
	}
	r.fail(errHandler, ids...)
	r.replay(ids...)
	r.run(r.processor())
	testenv.Until(t, runnerPatience, func(context.Context) error {
		if r.handled("5") < 3 { // the probes go round
			return errors.New("the last letter has not been probed twice")
		}
		return nil
	})
	if n := r.Text("SELECT count(*) FROM public.cdc_relay_inbox_letter WHERE state = 'due'"); n != "6" {
		t.Errorf("%s letters are due, want all 6", n)
	}
	r.fail(nil, ids...)
	for _, id := range ids {
		r.untilLetter(id, "processed permanent blocks")
	}
	testenv.Until(t, runnerPatience, func(context.Context) error {
		if got := r.seen.breakers(); !slices.Equal(got, []bool{true, false}) {
			return fmt.Errorf("the breaker was %v, want open and then closed", got)
		}
		return nil
	})
}

func TestRunnerBlocksInsteadOfBurying(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries = 2 })
	r.fail(inbox.Permanent(errHandler), "1")
	r.deliver(r.processor(), keyed("1", "a"), inbox.DeadLettered)
	r.replay("1")
	r.run(r.processor(func(c *inbox.Config) { c.Order = inbox.Block }))
	testenv.Until(t, runnerPatience, func(context.Context) error {
		if r.handled("1") < 6 {
			return errors.New("the message is not tried on")
		}
		return nil
	})
	r.wantLetter("1", "due permanent blocks")
	r.fail(nil, "1")
	r.untilLetter("1", "processed permanent blocks")
	r.wantNoAttempt("1")
}

func TestRunnerWaitsAsLongAsTheHandlerAsks(t *testing.T) {
	r := newRunnerRig(t)
	p := r.processor()
	r.fail(inbox.Permanent(errHandler), "1", "fence", "another")
	for _, id := range []string{"1", "fence", "another"} {
		r.deliver(p, keyed(id, id), inbox.DeadLettered)
	}
	r.fail(nil, "fence", "another")
	r.fail(inbox.RetryAfter(errHandler, time.Hour), "1")
	r.replay("1")
	r.run(p)
	testenv.Until(t, runnerPatience, func(context.Context) error {
		const sql = `SELECT concat_ws(' ', state, not_before > now() + interval '50 minutes') FROM public.cdc_relay_inbox_letter WHERE message_id = '1'`
		if got := r.Text(sql); got != "due t" {
			return fmt.Errorf("letter %q, want one that is due in an hour", got)
		}
		return nil
	})
	for _, id := range []string{"fence", "another"} { // the runner has looked since
		r.replay(id)
		r.untilLetter(id, "processed permanent blocks")
	}
	if n := r.handled("1"); n != 2 {
		t.Errorf("the handler was called %d times, want 2", n)
	}
}

// Two of a key can be dead when they were handled at the same time. Replaying the later
// one does not get it past the earlier one.
func TestReplayWaitsForAnEarlierDeadLetterOfItsKey(t *testing.T) {
	r := newRunnerRig(t)
	for _, m := range []struct{ id, key string }{{"1", "a"}, {"2", "a"}, {"fence", "b"}} {
		r.Exec(`SELECT public.cdc_inbox_dead_letter('shipping', $1, 'orders', 0, 0, $2, NULL, '{}', '{}', 'permanent', '', true)`, m.id, []byte(m.key))
	}
	r.run(r.processor())
	r.replay("2")
	r.replay("fence")
	r.untilLetter("fence", "processed permanent blocks")
	r.wantLetter("2", "due permanent blocks")
	r.replay("1")
	r.untilLetter("2", "processed permanent blocks")
	r.wantEffects("fence 1 2")
}

// What keeps the whole runner waiting is said once.
func TestRunnerSurvivesItsDatabase(t *testing.T) {
	r := newRunnerRig(t)
	p := r.processor()
	r.fail(inbox.Permanent(errHandler), "1")
	r.deliver(p, keyed("1", "a"), inbox.DeadLettered)
	r.fail(nil, "1")
	r.Exec("ALTER TABLE public.cdc_relay_inbox_letter RENAME TO elsewhere")
	r.run(p)
	away := func(want string) {
		t.Helper()
		testenv.Until(t, runnerPatience, func(context.Context) error {
			r.seen.mu.Lock()
			defer r.seen.mu.Unlock()
			var got []bool
			for _, s := range r.seen.states {
				got = append(got, s.DatabaseAway)
			}
			if text := fmt.Sprint(got); text != want {
				return fmt.Errorf("the database was away %s, want %s", text, want)
			}
			return nil
		})
	}
	away("[true]")
	r.Exec("ALTER TABLE public.elsewhere RENAME TO cdc_relay_inbox_letter")
	away("[true false]")
	r.replay("1")
	r.untilLetter("1", "processed permanent blocks")
}
