package inboxtests

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func byVersion(c *inbox.Config) { c.Sequence.Mode = inbox.ByVersion }

func TestGapIsParkedAndAppliedInOrder(t *testing.T) {
	r := newRunnerRig(t, byVersion)
	p := r.processor()
	r.run(p)
	r.deliver(p, versioned("v1", "a", 1), inbox.Processed)
	r.deliver(p, versioned("v3", "a", 3), inbox.Parked)
	r.deliver(p, versioned("v4", "a", 4), inbox.Parked)
	r.deliver(p, versioned("w1", "b", 1), inbox.Processed) // another key
	r.deliver(p, keyed("x", ""), inbox.Processed)          // none
	r.wantLetter("v3", "parked gap")
	r.wantOutcome("v3", "parked")
	if got, want := r.seen.of(gapped), "parked/0/gap parked/0/gap"; got != want {
		t.Errorf("deliveries with a gap %q, want %q", got, want)
	}
	r.deliver(p, versioned("v2", "a", 2), inbox.Processed)
	r.untilLetter("v4", "processed gap")
	r.wantEffects("v1 w1 x v2 v3 v4")
	r.wantOutcome("v4", "processed")
	r.deliver(p, versioned("v5", "a", 5), inbox.Processed)
}

func TestOldVersionIsStale(t *testing.T) {
	r := newRunnerRig(t, byVersion)
	p := r.processor()
	r.deliver(p, versioned("1", "a", 1), inbox.Processed)
	r.deliver(p, versioned("2", "a", 2), inbox.Processed)
	r.deliver(p, versioned("other copy of 1", "a", 1), inbox.Stale)
	r.wantOutcome("other copy of 1", "stale")
	r.deliver(p, versioned("other copy of 1", "a", 1), inbox.Duplicate)
	r.wantEffects("1 2")
}

// Both where the key has no row to lock yet, and where it has one.
func TestConcurrentMessagesOfAKeyAreNotBothNext(t *testing.T) {
	r := newRunnerRig(t, byVersion)
	p := r.processor()
	const n = 20
	for version := 1; version <= 2; version++ {
		outcomes := make(chan inbox.Outcome, n)
		for i := range n {
			m := versioned(fmt.Sprintf("%d.%d", version, i), "a", version)
			go func() { outcomes <- p.Process(t.Context(), m).Outcome }()
		}
		got := map[inbox.Outcome]int{}
		for range n {
			got[<-outcomes]++
		}
		if got[inbox.Processed] != 1 || got[inbox.Stale] != n-1 {
			t.Errorf("outcomes of version %d: %v, want one processed and the others stale", version, got)
		}
	}
	if effects := r.Text("SELECT count(*) FROM effect"); effects != "2" {
		t.Errorf("%s effects, want 2", effects)
	}
}

func TestGapWaitsUntilItsTimeoutWithoutUsingAttempts(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	r := newRunnerRig(t, byVersion, func(c *inbox.Config) {
		c.Sequence.OnGap, c.Sequence.GapTimeout = inbox.WaitGap, time.Hour
		c.MaxDeliveries = 2
		c.Now = func() time.Time { return time.Unix(0, now.Load()) }
	})
	p := r.processor()
	for range 5 {
		if got := r.deliver(p, versioned("2", "a", 2), inbox.Retry); got.Attempts != 0 || got.After <= 0 {
			t.Fatalf("%d attempts, again after %v; want none, and a pause", got.Attempts, got.After)
		}
	}
	r.wantNoAttempt("2")
	r.wantOutcome("2", "")
	// What is missing comes in time.
	r.deliver(p, versioned("1", "a", 1), inbox.Processed)
	r.deliver(p, versioned("2", "a", 2), inbox.Processed)
	// And what is missing does not come.
	r.deliver(p, versioned("4", "a", 4), inbox.Retry)
	now.Add(int64(2 * time.Hour))
	r.deliver(p, versioned("4", "a", 4), inbox.Parked)
	r.wantLetter("4", "parked gap")
	r.wantEffects("1 2")
}

func TestAnyFirstVersionBeginsAKey(t *testing.T) {
	r := newRunnerRig(t, byVersion, func(c *inbox.Config) { c.Sequence.AnyFirst = true })
	p := r.processor()
	r.deliver(p, versioned("7", "a", 7), inbox.Processed)
	r.deliver(p, versioned("9", "a", 9), inbox.Parked)
	r.deliver(p, versioned("8", "a", 8), inbox.Processed)
}

func TestSkippedVersionLeavesNoGap(t *testing.T) {
	r := newRunnerRig(t, byVersion, func(c *inbox.Config) { c.Order = inbox.Skip })
	p := r.processor()
	r.fail(inbox.Permanent(errHandler), "1", "3")
	r.deliver(p, versioned("1", "a", 1), inbox.DeadLettered)
	r.deliver(p, versioned("2", "a", 2), inbox.Processed)
	r.deliver(p, versioned("3", "a", 3), inbox.DeadLettered)
	r.deliver(p, versioned("4", "a", 4), inbox.Processed)
	// Somebody decides that they are to be handled all the same: they are not stale, and
	// the sequence does not go back.
	r.fail(nil, "1", "3")
	r.replay("1", "3")
	r.run(p)
	r.untilLetter("1", "processed permanent")
	r.untilLetter("3", "processed permanent")
	r.wantEffects("2 4 1 3")
	r.deliver(p, versioned("5", "a", 5), inbox.Processed)
}

func TestParkedBehindADeadLetterMayHaveAGapOfItsOwn(t *testing.T) {
	r := newRunnerRig(t, byVersion)
	p := r.processor()
	r.fail(inbox.Permanent(errHandler), "1")
	r.deliver(p, versioned("1", "a", 1), inbox.DeadLettered)
	r.deliver(p, versioned("3", "a", 3), inbox.Parked)
	r.wantLetter("3", "parked behind blocks")
	r.fail(nil, "1")
	r.replay("1")
	r.run(p)
	r.untilLetter("3", "parked gap")
	r.deliver(p, versioned("2", "a", 2), inbox.Processed)
	r.untilLetter("3", "processed gap")
	r.wantEffects("1 2 3")
}

func TestDiscardedVersionLeavesNoGap(t *testing.T) {
	r := newRunnerRig(t, byVersion)
	p := r.processor()
	r.fail(inbox.Permanent(errHandler), "1")
	r.deliver(p, versioned("1", "a", 1), inbox.DeadLettered)
	r.deliver(p, versioned("2", "a", 2), inbox.Parked)
	r.discard("1")
	r.run(p)
	r.untilLetter("2", "processed behind blocks")
	r.deliver(p, versioned("3", "a", 3), inbox.Processed)
	r.wantEffects("2 3")
}

// position is a header of the relay; see docs/position-header.md.
func position(history string, commit int, kind string) string {
	return fmt.Sprintf("1.%s.00000001.9c1be0d1f22a7745.00000006.%016x.000000001a2b3c40.%s.00000000.3cdd6d2f1a9e7b10", history, commit, kind)
}

func TestOldPositionIsStaleAfterPruning(t *testing.T) {
	const history, other = "5f0c21d4a97be310", "00000000000000ff"
	at := func(id, history string, commit int) *inbox.Message {
		return keyed(id, "a", "cdc-relay-position", position(history, commit, "r"))
	}
	r := newRunnerRig(t, func(c *inbox.Config) { c.Sequence.Mode = inbox.ByPosition })
	p := r.processor()
	r.deliver(p, at("1", history, 10), inbox.Processed)
	r.deliver(p, at("2", history, 20), inbox.Processed)
	r.deliver(p, at("4", history, 40), inbox.Processed) // no gap: positions are not consecutive
	r.Exec("DELETE FROM public.cdc_relay_inbox")
	r.deliver(p, at("2", history, 20), inbox.Stale)
	r.deliver(p, at("4", history, 40), inbox.Stale)
	r.deliver(p, keyed("replayed", "a", "cdc-relay-position", position(history, 15, "m"), "cdc-relay-replay", "1"), inbox.Processed)
	r.deliver(p, at("5", history, 50), inbox.Processed)
	r.deliver(p, at("restored", other, 5), inbox.Processed) // another history: nothing is known against it
	r.deliver(p, keyed("without", "a"), inbox.Processed)
	r.wantEffects("1 2 4 replayed 5 restored without")
}

// The row of the sequence moves in the transaction of the effect.
func TestSequenceMovesWithTheEffect(t *testing.T) {
	r := newRunnerRig(t, byVersion)
	p := r.processor()
	r.fail(errHandler, "1")
	r.deliver(p, versioned("1", "a", 1), inbox.Retry)
	r.deliver(p, versioned("2", "a", 2), inbox.Parked)
	r.fail(nil, "1")
	r.deliver(p, versioned("1", "a", 1), inbox.Processed)
	testenv.Until(t, runnerPatience, func(context.Context) error {
		if got := r.Text("SELECT version FROM public.cdc_relay_inbox_sequence"); got != "1" {
			return fmt.Errorf("version %q, want 1", got)
		}
		return nil
	})
}
