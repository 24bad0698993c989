package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// someWork is one on n dead letters, numbered 10, 20, …, that notes each batch and its time.
type someWork struct {
	work
	batches [][]int64
	at      []time.Duration
}

func newWork(n int) *someWork {
	began := time.Now()
	w := &someWork{work: work{batch: 20, stderr: &strings.Builder{}, verb: "replayed", total: int64(n)}}
	w.letters = &letters{store: someStore{n: int64(n)}}
	w.change = func(_ context.Context, ids []int64) (int64, error) {
		w.batches, w.at = append(w.batches, ids), append(w.at, time.Since(began))
		return int64(len(ids)), nil
	}
	return w
}

// someStore has n dead letters; it only lists them.
type someStore struct {
	store

	n int64
}

func (s someStore) list(_ context.Context, _ deadletter.Filter, limit int, after int64) (page []entry, err error) {
	for id := after + 10; len(page) < limit && id <= s.n*10; id += 10 {
		page = append(page, entry{Letter: deadletter.Letter{ID: id}})
	}
	return page, nil
}

func (w *someWork) sizes() (sizes []int) {
	for _, b := range w.batches {
		sizes = append(sizes, len(b))
	}
	return sizes
}

// The work goes in batches at the rate, each dead letter once and in order.
func TestWorkRate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		n     int
		rate  float64
		sizes []int
		last  time.Duration // when the last batch begins
	}{
		{50, 0, []int{20, 20, 10}, 0},
		{50, 200, []int{20, 20, 10}, 200 * time.Millisecond},
		{25, 10, []int{10, 10, 5}, 2 * time.Second},
		{3, 0.5, []int{1, 1, 1}, 4 * time.Second},
		{0, 200, nil, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWork(tt.n)
			w.rate = tt.rate
			if err := w.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.sizes, w.sizes()); diff != "" {
				t.Errorf("rate %v: batches: %s", tt.rate, diff)
			}
			if ids := slices.Concat(w.batches...); !slices.IsSorted(ids) || len(ids) != tt.n || w.done != int64(tt.n) {
				t.Errorf("rate %v: %d done: %v", tt.rate, w.done, ids)
			}
			if n := len(w.at); n > 0 && w.at[n-1] != tt.last {
				t.Errorf("rate %v: the last batch begins after %v, want %v", tt.rate, w.at[n-1], tt.last)
			}
		})
	}
}

// Dead letters that come while it works are not its own: it would never end.
func TestWorkEnds(t *testing.T) {
	t.Parallel()
	w := newWork(1000)
	w.total = 30
	if err := w.run(t.Context()); err != nil || w.done != 30 || !slices.Equal(w.sizes(), []int{20, 10}) {
		t.Errorf("got %d in batches of %v, %v", w.done, w.sizes(), err)
	}
}

// A signal ends the work behind the batch that has begun, or in the pause before the next.
func TestWorkInterrupted(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]float64{"in a batch": 0, "in a pause": 20} {
		synctest.Test(t, func(t *testing.T) {
			w := newWork(100)
			w.rate = rate
			ctx, cancel := context.WithCancel(t.Context())
			if rate > 0 {
				time.AfterFunc(1500*time.Millisecond, cancel)
			}
			change := w.change
			w.change = func(ctx context.Context, ids []int64) (int64, error) {
				if rate == 0 && len(w.batches) == 1 {
					cancel()
				}
				if ctx.Err() != nil {
					t.Errorf("%s: a batch is broken off", name)
				}
				return change(ctx, ids)
			}
			what, next, code := explain(w.run(ctx))
			if what != "stopped; replayed 40 of 100 dead letters" || next != "run it again to go on" || code != exitInterrupted || w.done != 40 {
				t.Errorf("%s: got %q, %q, exit code %d, %d done", name, what, next, code, w.done)
			}
		})
	}
}

// A signal during the last batch is none: everything is done.
func TestWorkInterruptedAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWork(15)
	ctx, cancel := context.WithCancel(t.Context())
	change := w.change
	w.change = func(ctx context.Context, ids []int64) (int64, error) {
		cancel()
		return change(ctx, ids)
	}
	if err := w.run(ctx); err != nil || w.done != 15 {
		t.Errorf("got %d, %v", w.done, err)
	}
}

// An error tells how far the work came, with the cause and its class.
func TestWorkFails(t *testing.T) {
	t.Parallel()
	w := newWork(100)
	change := w.change
	w.change = func(ctx context.Context, ids []int64) (int64, error) {
		if len(w.batches) == 2 {
			return 0, &exitError{errors.New("the server is gone"), exitUnreachable, "run it again"}
		}
		return change(ctx, ids)
	}
	what, next, code := explain(w.run(t.Context()))
	if what != "stopped; replayed 40 of 100 dead letters: the server is gone" || next != "run it again" || code != exitUnreachable {
		t.Errorf("got %q, %q, exit code %d", what, next, code)
	}
}

// Where no bar can be drawn, a line from time to time tells the progress.
func TestWorkTells(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork(40)
		w.rate = 1
		if err := w.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := `
replayed 11 of 40, 1 a second, 26s left
replayed 21 of 40, 1 a second, 18s left
replayed 31 of 40, 1 a second, 9s left
`
		if diff := cmp.Diff(want[1:], w.stderr.(*strings.Builder).String()); diff != "" {
			t.Error(diff)
		}
	})
}
