package relay

import (
	"fmt"
	"slices"
	"sync"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// breakerRows is how many rows must have been decided before the breaker judges.
const breakerRows = 20

// breaker keeps the relay from making dead letters of everything: where a large
// share of the rows fails, the fault is hardly the rows'. It looks at the last
// window rows that were decided, which is acknowledged or dead-lettered. Each dead
// letter keeps its ordinal, the number of rows decided when it was written; so what
// is in the table tells a new process where the window stands. The rows that were
// acknowledged after the last dead letter are forgotten then, which makes it
// stricter and never laxer.
type breaker struct {
	window int
	share  float64

	mu       sync.Mutex
	before   int64   // decided before this process, as far as the table tells
	written  int64   // dead letters of this process
	ordinals []int64 // of the dead letters within the window, ascending
}

// BreakerError says that a row does not become a dead letter, since too many have.
type BreakerError struct {
	Letters, Rows int // of the last rows, this one included, so many would be dead letters
	Share         float64
}

// Error names the counts and the next step.
func (e *BreakerError) Error() string {
	return fmt.Sprintf("%d of the last %d rows would be dead letters, more than breaker.share (%g) allows; "+
		"next: look for a common cause in `cdc-relay dlq stats` and remove it, or raise breaker.share and start again",
		e.Letters, e.Rows, e.Share)
}

// load takes over what the table says, which may be another process's work. The
// number of decided rows never goes back.
func (b *breaker) load(h deadletter.History, acknowledged uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ordinals = slices.Clone(h.Ordinals)
	slices.Sort(b.ordinals)
	b.before += max(0, h.Total-b.total(acknowledged))
}

// total is the number of rows decided so far.
func (b *breaker) total(acknowledged uint64) int64 {
	return b.before + b.written + int64(acknowledged)
}

// admit counts one more dead letter and returns its ordinal, or says why there must
// be none. acknowledged is the count of this process.
func (b *breaker) admit(acknowledged uint64) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.total(acknowledged) + 1
	for len(b.ordinals) > 0 && b.ordinals[0] <= n-int64(b.window) {
		b.ordinals = b.ordinals[1:]
	}
	letters, rows := len(b.ordinals)+1, min(n, int64(b.window))
	letters = min(letters, int(rows)) // two have one ordinal where one in between was withdrawn
	if rows >= breakerRows && float64(letters) > b.share*float64(rows) {
		return 0, &BreakerError{Letters: letters, Rows: int(rows), Share: b.share}
	}
	b.written++
	b.ordinals = append(b.ordinals, n)
	return n, nil
}

// withdraw takes back what admit has counted.
func (b *breaker) withdraw(ordinal int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.ordinals, ordinal); i >= 0 {
		b.ordinals = slices.Delete(b.ordinals, i, i+1)
		b.written--
	}
}
