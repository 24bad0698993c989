package relay

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// refusedAfter returns how many dead letters in a row are admitted.
func refusedAfter(t *testing.T, b *breaker, acknowledged uint64, limit int) int {
	t.Helper()
	for n := range limit {
		if _, err := b.admit(acknowledged); err != nil {
			if e := (*BreakerError)(nil); !errors.As(err, &e) || !strings.Contains(err.Error(), "breaker.share") {
				t.Errorf("refused with %v", err)
			}
			return n
		}
	}
	return limit
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		window       int
		share        float64
		acknowledged uint64
		history      deadletter.History
		want         int // of a hundred
	}{
		"nothing before":          {window: 1000, share: 0.2, want: 19},
		"switched off":            {window: 1000, share: 1, want: 100},
		"behind many good ones":   {window: 1000, share: 0.2, acknowledged: 1_000_000, want: 100},
		"a small window":          {window: 100, share: 0.2, acknowledged: 1_000_000, want: 20},
		"behind some good ones":   {window: 1000, share: 0.2, acknowledged: 100, want: 25},
		"many in the table":       {window: 100, share: 0.2, history: deadletter.History{Total: 500, Ordinals: ordinals(481, 500)}, want: 0},
		"the table's, and mine":   {window: 100, share: 0.2, history: deadletter.History{Total: 500, Ordinals: ordinals(491, 500)}, want: 10},
		"what is behind is over":  {window: 100, share: 0.2, acknowledged: 90, history: deadletter.History{Total: 500, Ordinals: ordinals(401, 420)}, want: 20},
		"few in a young table":    {window: 100, share: 0.5, history: deadletter.History{Total: 5, Ordinals: ordinals(1, 5)}, want: 14},
		"exactly the share is ok": {window: 20, share: 0.25, acknowledged: 1000, want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &breaker{window: c.window, share: c.share}
			b.load(c.history, 0)
			if got := refusedAfter(t, b, c.acknowledged, 100); got != c.want {
				t.Errorf("%d are admitted, want %d", got, c.want)
			}
		})
	}
}

func ordinals(from, to int64) []int64 {
	var out []int64
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

// A letter that could not be written does not count.
func TestBreakerForgetsWhatWasNotWritten(t *testing.T) {
	t.Parallel()
	b := &breaker{window: 100, share: 0.2}
	for range 1000 {
		n, err := b.admit(0)
		if err != nil {
			t.Fatal(err)
		}
		b.withdraw(n)
	}
	if got := refusedAfter(t, b, 0, 100); got != 19 {
		t.Errorf("%d are admitted", got)
	}
}

// However often the process is restarted, and whatever is acknowledged, within the
// window there are never more dead letters than the share, once there are rows enough to judge.
func TestBreakerAcrossRestarts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const window, share = 50, 0.3
		var all []int64 // ordinals in the table
		var good, decided int64
		b := &breaker{window: window, share: share}
		acknowledged := uint64(0)
		for _, step := range rapid.SliceOfN(rapid.IntRange(0, 9), 1, 400).Draw(t, "steps") {
			switch {
			case step == 0: // another process
				b, acknowledged = &breaker{window: window, share: share}, 0
				b.load(tell(all, window), 0)
			case step < 5:
				acknowledged++
				good++
			default:
				n, err := b.admit(acknowledged)
				if err != nil {
					continue
				}
				all = append(all, n)
				decided = good + int64(len(all))
				recent := len(tell(all, window).Ordinals)
				if n > decided {
					t.Fatalf("ordinal %d of %d rows", n, decided)
				}
				if rows := min(n, window); rows >= breakerRows && float64(recent) > share*float64(rows) {
					t.Fatalf("%d of %d rows are dead letters", recent, rows)
				}
			}
		}
	})
}

// tell is what package deadletter says of these ordinals.
func tell(all []int64, window int64) deadletter.History {
	var h deadletter.History
	for _, n := range all {
		h.Total = max(h.Total, n)
	}
	for _, n := range all {
		if n > h.Total-window {
			h.Ordinals = append(h.Ordinals, n)
		}
	}
	return h
}

// Off is off, also when a dead letter that was not written leaves its ordinal to another.
func TestBreakerSwitchedOff(t *testing.T) {
	t.Parallel()
	b := breaker{window: 100, share: 1}
	for i := range 300 {
		one, err := b.admit(0)
		if err == nil && i%30 == 20 {
			if _, err = b.admit(0); err == nil {
				b.withdraw(one)
			}
		}
		if err != nil {
			t.Fatalf("dead letter %d: %v", i+1, err)
		}
	}
}
