package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// waitPause is how often the slot is asked for its position.
const waitPause = 100 * time.Millisecond

// errWaitTimeout is what ends a wait after --timeout.
var errWaitTimeout = errors.New("time is over")

// await waits until the slot's confirmed position has passed the last replay, then finds out which
// were refused again: whether one was is settled before the position passes it.
func (r *replay) await(ctx context.Context, l *letters) error {
	if r.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, r.timeout, errWaitTimeout)
		defer stop()
	}
	if err := r.confirmed(ctx, l); err != nil {
		return err
	}
	for ids := range slices.Chunk(r.replayed, listPage) {
		f := deadletter.Filter{Owner: l.owner, Letters: ids, States: []deadletter.State{deadletter.Dead}}
		again, err := l.list(ctx, f, len(ids), 0)
		if err != nil {
			return err
		}
		r.refused = append(r.refused, again...)
	}
	r.waited = true
	if len(r.refused) == 0 {
		return nil
	}
	return &exitError{
		fmt.Errorf("%s refused again", plural(int64(len(r.refused)), "dead letter")), exitPartly,
		"cdc-relay dlq show NUMBER tells why; correct that and replay again, or discard",
	}
}

// confirmed waits for the slot's position.
func (r *replay) confirmed(ctx context.Context, l *letters) error {
	fmt.Fprintln(r.stderr, "waiting until the relay has published them")
	told := time.Now()
	for {
		slot, found, err := l.db.Slot(ctx, l.owner)
		switch {
		case err != nil:
			return r.unconfirmed(ctx, l, slot.Active, err)
		case !found:
			return &exitError{
				fmt.Errorf("slot %s does not exist any more, so nobody publishes what was replayed", l.owner), exitConfig,
				"create it: cdc-relay init; what was replayed before is not published then",
			}
		case slot.Confirmed >= r.end:
			return nil
		}
		if time.Since(told) >= progressPause {
			told = time.Now()
			fmt.Fprintln(r.stderr, behind(r.end, slot.Confirmed, slot.Active))
		}
		if err := until(ctx, time.Now().Add(waitPause)); err != nil {
			return r.unconfirmed(ctx, l, slot.Active, err)
		}
	}
}

// behind says what is being waited for.
func behind(target, confirmed pglogrepl.LSN, active bool) string {
	if !active {
		return "still waiting: no relay streams from the slot"
	}
	return fmt.Sprintf("still waiting: the relay is %s of log behind", sizeText(int64(target-confirmed)))
}

// unconfirmed says that the wait has ended without an answer.
func (r *replay) unconfirmed(ctx context.Context, l *letters, active bool, err error) error {
	if ctx.Err() == nil {
		return err
	}
	within := ""
	if errors.Is(context.Cause(ctx), errWaitTimeout) {
		within = " within " + r.timeout.String()
	}
	text := fmt.Sprintf("%s replayed, but not confirmed by the relay%s", plural(int64(len(r.replayed)), "dead letter"), within)
	next := "see what keeps it: cdc-relay health; what was replayed stays so, and dlq list shows what is refused again"
	if !active {
		text += ": none streams from slot " + l.owner
		next = "start it: cdc-relay run; what was replayed stays so"
	}
	if within == "" {
		return &exitError{errors.New("interrupted; " + text), exitInterrupted, next}
	}
	return &exitError{errors.New(text), exitPartly, next}
}
