package inboxkafka

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Nothing is committable past a record that is not settled, in whatever order they are.
func TestNothingPastWorkInFlight(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		o := offsets{next: 10}
		open := map[int64]bool{}
		for next := int64(10); next < 200; {
			if random.IntN(2) == 0 {
				next += int64(random.IntN(3)) // control records and compacted ones
				o.add(next, time.Unix(next, 0))
				open[next] = true
				next++
				o.pass(next)
			} else {
				for offset := range open {
					o.settle(offset)
					delete(open, offset)
					break
				}
			}
			want, oldest := o.next, time.Time{}
			for offset := range open {
				if offset < want {
					want, oldest = offset, time.Unix(offset, 0)
				}
			}
			if got, at := o.committable(); got != want || !at.Equal(oldest) {
				t.Fatalf("seed %d: %d (%v) may be committed, want %d (%v)", seed, got, at, want, oldest)
			}
			if len(open) > o.pending() || len(open) == 0 && o.pending() != 0 {
				t.Fatalf("seed %d: %d pending, %d open", seed, o.pending(), len(open))
			}
		}
	}
}
