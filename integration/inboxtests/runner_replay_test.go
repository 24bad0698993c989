package inboxtests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

var errHandler = errors.New("the handler fails")

func TestReplayedLetterIsHandledOnceByTheRunner(t *testing.T) {
	r := newRunnerRig(t)
	p := r.processor()
	m := keyed("1", "a")
	r.fail(inbox.Permanent(errHandler), "1")
	r.deliver(p, m, inbox.DeadLettered)
	r.wantLetter("1", "dead permanent blocks")
	r.run(p)
	r.fail(nil, "1")
	if n := r.replay("1"); n != 1 {
		t.Fatalf("%d letters were replayed, want 1", n)
	}
	r.untilLetter("1", "processed permanent blocks")
	r.wantEffects("1")
	r.wantOutcome("1", "processed")
	if n := r.replay("1"); n != 0 {
		t.Errorf("the second replay marked %d letters, want none", n)
	}
	r.deliver(p, m, inbox.Duplicate)
	r.wantEffects("1")
	testenv.Until(t, runnerPatience, func(context.Context) error { // told behind the commit
		if got := r.seen.of(replayed); got != "processed/0" {
			return fmt.Errorf("deliveries of replays %q, want %q", got, "processed/0")
		}
		return nil
	})
}

func TestReplayGivesTheHandlerTheWholeRecord(t *testing.T) {
	messages := []*inbox.Message{keyed("1", "a\x00\xff"), keyed("2", ""), keyed("3", "c")}
	messages[1].Value = nil
	messages[2].Key, messages[2].Value = []byte{}, []byte{}
	var mu sync.Mutex
	got, broken := map[string]*inbox.Message{}, true
	r := newRunnerRig(t, func(c *inbox.Config) {
		c.Handler = func(_ context.Context, _ pgx.Tx, m *inbox.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if broken {
				return inbox.Permanent(errHandler)
			}
			got[m.ID] = m
			return nil
		}
	})
	p := r.processor()
	for _, m := range messages {
		r.deliver(p, m, inbox.DeadLettered)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	r.replay("1", "2", "3")
	r.run(p)
	for _, m := range messages {
		testenv.Until(t, runnerPatience, func(context.Context) error {
			if state, _, _ := strings.Cut(r.letter(m.ID), " "); state != "processed" {
				return fmt.Errorf("letter of %s is %s", m.ID, state)
			}
			return nil
		})
	}
	mu.Lock()
	defer mu.Unlock()
	for _, m := range messages {
		if text := fmt.Sprintf("%#v", record(got[m.ID])); text != fmt.Sprintf("%#v", record(m)) {
			t.Errorf("the handler got %s, want %#v", text, record(m))
		}
	}
}

// record is what two copies of a message compare by; nil and empty are told apart.
func record(m *inbox.Message) any {
	if m == nil {
		return nil
	}
	c := *m
	c.Time = m.Time.UTC()
	return c
}

func TestReplayThatFailsAgainHasAFreshCount(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries = 3 })
	p := r.processor()
	m := keyed("1", "")
	r.fail(errHandler, "1")
	r.deliver(p, m, inbox.Retry)
	r.deliver(p, m, inbox.Retry)
	r.deliver(p, m, inbox.DeadLettered)
	r.run(p)
	r.replay("1")
	testenv.Until(t, runnerPatience, func(context.Context) error {
		const sql = `SELECT concat_ws(' ', state, deliveries, replays, error) FROM public.cdc_relay_inbox_letter`
		if got, want := r.Text(sql), "dead 3 1 the handler fails"; got != want {
			return fmt.Errorf("letter %q, want %q", got, want)
		}
		return nil
	})
	if n := r.handled("1"); n != 6 {
		t.Errorf("the handler was called %d times, want three deliveries and three of the replay", n)
	}
	r.wantOutcome("1", "dead")
	r.wantEffects("")
	r.wantNoAttempt("1")
	testenv.Until(t, runnerPatience, func(context.Context) error {
		if got, want := r.seen.of(replayed), "retry/1 retry/2 dead_lettered/3/max_deliveries"; got != want {
			return fmt.Errorf("deliveries of the replay %q, want %q", got, want)
		}
		return nil
	})
}

func TestParkedKeyRunsInOrderBehindItsReplay(t *testing.T) {
	r := newRunnerRig(t)
	first, second := r.processor(), r.processor()
	r.fail(inbox.Permanent(errHandler), "a1")
	r.deliver(first, keyed("a1", "a"), inbox.DeadLettered)
	var want []string
	for i := 2; i <= 20; i++ {
		id := "a" + strconv.Itoa(i)
		r.deliver(first, keyed(id, "a"), inbox.Parked)
		want = append(want, id)
	}
	r.deliver(first, keyed("b1", "b"), inbox.Processed)
	r.wantLetter("a20", "parked behind blocks")
	r.wantOutcome("a20", "parked")
	r.run(first)
	r.run(second) // two at once do not get ahead of each other
	r.fail(nil, "a1")
	r.replay("a1")
	r.untilLetter("a20", "processed behind blocks")
	r.wantEffects("b1 a1 " + strings.Join(want, " "))
	r.wantOutcome("a20", "processed")
	r.deliver(first, keyed("a21", "a"), inbox.Processed)
	r.deliver(first, keyed("a20", "a"), inbox.Duplicate)
}

func TestParkedRunOnceWhatTheyWaitForIsDiscarded(t *testing.T) {
	r := newRunnerRig(t)
	p := r.processor()
	r.run(p)
	r.fail(inbox.Permanent(errHandler), "1", "3")
	r.deliver(p, keyed("1", "a"), inbox.DeadLettered)
	for _, id := range []string{"2", "3", "4"} {
		r.deliver(p, keyed(id, "a"), inbox.Parked)
	}
	if n := r.discard("1"); n != 1 {
		t.Fatalf("%d letters were discarded, want 1", n)
	}
	// 3 dies in its turn, and 4 goes on waiting.
	r.untilLetter("3", "dead permanent blocks")
	r.wantEffects("2")
	if n := r.handled("3"); n != 1 {
		t.Errorf("the handler had 3, which fails for good, %d times, want once", n)
	}
	r.wantLetter("4", "parked behind blocks")
	r.wantOutcome("3", "dead")
	r.wantOutcome("4", "parked")
	r.discard("3")
	r.untilLetter("4", "processed behind blocks")
	r.wantEffects("2 4")
	r.wantOutcome("1", "discarded")
}

func TestSeveralReplaysOfAKeyKeepTheirOrder(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) { c.Order = inbox.Skip })
	p := r.processor()
	ids := []string{"1", "2", "3", "4", "5", "6", "7", "8"}
	all := append(slices.Clone(ids), "fence")
	r.fail(inbox.Permanent(errHandler), all...)
	for _, id := range ids {
		r.deliver(p, keyed(id, "a"), inbox.DeadLettered)
	}
	r.deliver(p, keyed("fence", "b"), inbox.DeadLettered)
	r.wantLetter("8", "dead permanent")
	r.fail(nil, all...)
	if n := r.replay(all...); n != len(all) {
		t.Fatalf("%d letters were replayed, want %d", n, len(all))
	}
	// Another runner has the first at work: the others wait for it, and not for others.
	tx, err := r.Conn().Begin(t.Context())
	r.must(err)
	_, err = tx.Exec(t.Context(), "SELECT FROM public.cdc_relay_inbox_letter WHERE message_id = '1' FOR UPDATE")
	r.must(err)
	r.run(p)
	r.untilLetter("fence", "processed permanent")
	r.wantEffects("fence")
	r.must(tx.Rollback(t.Context()))
	r.untilLetter("8", "processed permanent")
	r.wantEffects("fence " + strings.Join(ids, " "))
}

func TestTwoRunnersShareWithoutRepeating(t *testing.T) {
	r := newRunnerRig(t)
	p, other := r.processor(), r.processor()
	var ids []string
	for i := range 100 {
		ids = append(ids, strconv.Itoa(i))
	}
	r.fail(inbox.Permanent(errHandler), ids...)
	for _, id := range ids {
		r.deliver(p, keyed(id, "k"+id), inbox.DeadLettered)
	}
	r.fail(nil, ids...)
	r.run(p)
	r.run(other)
	r.replay(ids...)
	testenv.Until(t, runnerPatience, func(context.Context) error {
		if n := r.Text("SELECT count(*) FROM public.cdc_relay_inbox_letter WHERE state <> 'processed'"); n != "0" {
			return fmt.Errorf("%s letters are left", n)
		}
		return nil
	})
	got := strings.Fields(r.effects())
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		t.Errorf("effects %v, want each once", got)
	}
}

func TestRunnerThatLosesItsConnectionSettlesNothing(t *testing.T) {
	r := newRunnerRig(t, func(c *inbox.Config) { c.MaxDeliveries = 2 })
	var mu sync.Mutex
	lose := 0
	p := r.processor(func(c *inbox.Config) {
		c.Handler = func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			if err := r.handle(ctx, tx, m); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if lose++; lose <= 3 {
				return tx.Conn().Close(ctx) // as the death of the process looks to the server
			}
			return nil
		}
	})
	r.fail(inbox.Permanent(errHandler), "1")
	r.deliver(p, keyed("1", "a"), inbox.DeadLettered)
	r.fail(nil, "1")
	r.replay("1")
	r.run(p)
	r.untilLetter("1", "processed permanent blocks")
	r.wantEffects("1")
	r.wantNoAttempt("1")
	if n := r.handled("1"); n != 5 {
		t.Errorf("the handler was called %d times, want one that failed, three that were lost and one", n)
	}
}
