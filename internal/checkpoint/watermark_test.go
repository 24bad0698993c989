package checkpoint_test

import (
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/checkpoint"
)

// transaction plays one transaction of n rows.
func transaction(w *checkpoint.Watermark, n int, end pglogrepl.LSN) {
	w.Begin()
	for range n {
		w.Row()
	}
	w.Commit(end)
}

func wantAdvance(t *testing.T, w *checkpoint.Watermark, oldest uint64, inFlight bool, want pglogrepl.LSN) {
	t.Helper()
	if got := w.Advance(oldest, inFlight); got != want {
		t.Fatalf("Advance(%d, %t) = %s, want %s", oldest, inFlight, got, want)
	}
	if got := w.Confirmed(); got != want {
		t.Fatalf("Confirmed() = %s, want %s", got, want)
	}
}

func TestStartIsConfirmed(t *testing.T) {
	t.Parallel()
	for _, start := range []pglogrepl.LSN{0, 100} {
		w := checkpoint.New(start)
		wantAdvance(t, w, 0, false, start)
		if w.Open() || w.Pending() != 0 {
			t.Errorf("a new watermark is open=%t with %d pending", w.Open(), w.Pending())
		}
	}
}

func TestRowsAreNumberedFromOne(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(0)
	w.Begin()
	for want := uint64(1); want <= 3; want++ {
		if got := w.Row(); got != want {
			t.Errorf("Row() = %d, want %d", got, want)
		}
	}
}

func TestConfirmsWholeTransactionsInOrder(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(100)
	transaction(w, 2, 110) // Rows 1 and 2.
	transaction(w, 1, 120) // Row 3.
	wantAdvance(t, w, 1, true, 100)
	wantAdvance(t, w, 2, true, 100) // Half of the first.
	wantAdvance(t, w, 3, true, 110)
	if got := w.Pending(); got != 1 {
		t.Errorf("Pending() = %d, want 1", got)
	}
	wantAdvance(t, w, 0, false, 120)
}

func TestLaterTransactionWaitsForEarlier(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(100)
	transaction(w, 1, 110)
	transaction(w, 1, 120)
	transaction(w, 1, 130)
	// Rows 2 and 3 are acknowledged, row 1 is not.
	wantAdvance(t, w, 1, true, 100)
	wantAdvance(t, w, 0, false, 130)
}

func TestOpenTransactionIsNotConfirmed(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(100)
	w.Begin()
	w.Row()
	w.Keepalive(150)
	// Every row so far is settled, but more of the transaction may come.
	wantAdvance(t, w, 0, false, 100)
	if !w.Open() {
		t.Error("Open() = false inside a transaction")
	}
	w.Commit(160)
	wantAdvance(t, w, 0, false, 160)
}

func TestOpenTransactionDoesNotHoldEarlierOnes(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(100)
	transaction(w, 1, 110)
	w.Begin()
	w.Row()
	wantAdvance(t, w, 2, true, 110)
}

func TestKeepalive(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(100)
	w.Keepalive(105)
	wantAdvance(t, w, 0, false, 105)
	transaction(w, 1, 110)
	w.Keepalive(115)
	wantAdvance(t, w, 1, true, 105)
	// It is remembered, and confirmed as soon as everything is settled.
	wantAdvance(t, w, 0, false, 115)
	w.Keepalive(112)
	wantAdvance(t, w, 0, false, 115)
}

func TestKeepaliveWaitsForRowsThatTheQueueDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(100)
	w.Keepalive(105)
	// A lane has something in flight although no commit waits.
	wantAdvance(t, w, 1, true, 100)
	wantAdvance(t, w, 0, false, 105)
}

func TestEmptyTransactions(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(100)
	transaction(w, 0, 110)
	wantAdvance(t, w, 0, false, 110) // Nothing pending: free progress.
	transaction(w, 1, 120)
	for end := pglogrepl.LSN(121); end < 50_000; end++ {
		transaction(w, 0, end)
	}
	if got := w.Pending(); got != 1 {
		t.Errorf("Pending() = %d after many empty transactions, want 1", got)
	}
	wantAdvance(t, w, 1, true, 110)
	wantAdvance(t, w, 0, false, 49_999)
}

func TestNeverGoesBack(t *testing.T) {
	t.Parallel()
	w := checkpoint.New(100)
	transaction(w, 1, 50)
	wantAdvance(t, w, 0, false, 100)
	w.Keepalive(60)
	wantAdvance(t, w, 0, false, 100)
}

// TestStuckRowKeepsMemoryBounded lets a million transactions settle behind one row
// that does not.
func TestStuckRowKeepsMemoryBounded(t *testing.T) {
	t.Parallel()
	const transactions, bound = 1_000_000, 1 << 16
	w := checkpoint.New(0)
	for i := 1; i <= transactions; i++ {
		transaction(w, 1, pglogrepl.LSN(10*i))
		if got := w.Advance(1, true); got != 0 {
			t.Fatalf("confirmed %s with row 1 unsettled", got)
		}
		if got := w.Pending(); got > bound {
			t.Fatalf("%d commits are pending, want at most %d", got, bound)
		}
	}
	// Merged commits may lag behind, but never run ahead of what is settled.
	for oldest := uint64(1); oldest <= transactions; oldest += 997 {
		if got, limit := w.Advance(oldest, true), pglogrepl.LSN(10*(oldest-1)); got > limit {
			t.Fatalf("Advance(%d, true) = %s, beyond %s", oldest, got, limit)
		}
	}
	wantAdvance(t, w, 0, false, 10*transactions)
}

// TestSteadyBacklog keeps the queue non-empty for ever, which must not make it grow
// or forget anything.
func TestSteadyBacklog(t *testing.T) {
	t.Parallel()
	const behind = 1000
	w := checkpoint.New(0)
	for i := uint64(1); i <= 300_000; i++ {
		transaction(w, 1, pglogrepl.LSN(10*i))
		if i > behind {
			if got, want := w.Advance(i-behind+1, true), pglogrepl.LSN(10*(i-behind)); got != want {
				t.Fatalf("confirmed %s after %d transactions, want %s", got, i, want)
			}
		}
	}
	if got := w.Pending(); got != behind {
		t.Errorf("Pending() = %d, want %d", got, behind)
	}
}

func BenchmarkTransaction(b *testing.B) {
	w := checkpoint.New(0)
	b.ReportAllocs()
	for i := range b.N {
		transaction(w, 1, pglogrepl.LSN(10*i))
		if row := uint64(i); row > 100 {
			w.Advance(row-100, true)
		}
	}
}
