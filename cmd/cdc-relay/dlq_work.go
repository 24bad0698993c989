package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// work is a change of many dead letters, in batches. It ends between two of them when it is
// interrupted.
type work struct {
	letters *letters
	filter  deadletter.Filter
	limit   int64   // of dead letters, 0: all
	batch   int     // dead letters of one transaction
	rate    float64 // of them a second, 0: as fast as it goes
	stderr  io.Writer
	verb    string // what has been done to them
	// change does it to one batch and returns how many it was done to.
	change func(ctx context.Context, ids []int64) (int64, error)

	total int64 // how many there were to do
	done  int64 // and how many are done
}

// stoppedError ends a work between two batches.
type stoppedError struct {
	verb        string
	done, total int64
	cause       error // nil: interrupted
}

// Error says how far it came.
func (e *stoppedError) Error() string {
	text := fmt.Sprintf("stopped; %s %d of %s", e.verb, e.done, plural(e.total, "dead letter"))
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap returns what stopped it.
func (e *stoppedError) Unwrap() error { return e.cause }

// begin finds out how much there is to do.
func (w *work) begin(cmd *cobra.Command) error {
	total, err := w.letters.count(cmd.Context(), w.filter)
	if err != nil {
		return err
	}
	if total < int64(len(w.filter.Letters)) {
		if err := w.letters.sayLeftAlone(cmd, w.filter.Letters); err != nil {
			return err
		}
	}
	w.total = total
	if w.limit > 0 {
		w.total = min(w.total, w.limit)
	}
	return nil
}

// run does it. Dead letters that are written meanwhile come after those that were counted, so that
// the work ends also where they come faster than it goes.
func (w *work) run(ctx context.Context) error {
	if w.total == 0 {
		return nil
	}
	bar := newProgress(w.stderr, w.verb, w.total)
	defer bar.end()
	began, seen := time.Now(), int64(0)
	err := w.letters.each(ctx, w.filter, w.total, w.batchSize(), func(page []entry) error {
		if w.rate > 0 {
			if err := until(ctx, began.Add(time.Duration(float64(seen)/w.rate*float64(time.Second)))); err != nil {
				return err
			}
		}
		ids := make([]int64, len(page))
		for i := range page {
			ids[i] = page[i].ID
		}
		// A batch that has begun is finished; the connection's own limit bounds it.
		n, err := w.change(context.WithoutCancel(ctx), ids)
		if err != nil {
			return err
		}
		w.done += n
		seen += int64(len(ids))
		bar.add(int64(len(ids)))
		return ctx.Err()
	})
	switch {
	case err == nil, errors.Is(err, context.Canceled) && seen == w.total:
		return nil
	case errors.Is(err, context.Canceled):
		return &exitError{&stoppedError{w.verb, w.done, w.total, nil}, exitInterrupted, "run it again to go on"}
	case seen == 0:
		return err
	}
	return &stoppedError{w.verb, w.done, w.total, err}
}

// batchSize keeps a low rate even.
func (w *work) batchSize() int {
	if w.rate > 0 && w.rate < float64(w.batch) {
		return max(1, int(w.rate))
	}
	return w.batch
}

// until waits for a point in time or the end of ctx.
func until(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
