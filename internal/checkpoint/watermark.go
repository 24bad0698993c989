// Package checkpoint decides how far the log position of a slot may be confirmed.
//
// Confirming is what lets PostgreSQL forget, so a position may be confirmed only
// if every row before it is settled. A [Watermark] turns two orders into one: rows
// arrive in commit order and are numbered; they settle in any order, on many
// lanes. It keeps no entry per row: each lane knows its oldest unsettled row, and
// the lowest of these numbers bounds what is finished.
//
// The rules it keeps:
//
//   - The position is the end of a transaction all of whose rows, and all rows of
//     earlier transactions, are settled. The end is the one of the Commit message
//     (its end LSN): at or before the commit record's own LSN PostgreSQL would send
//     the whole transaction again.
//   - The WAL end of a keepalive is confirmed only when nothing is queued, in flight
//     or open, and then always. So an idle outbox in a busy database holds no WAL.
//   - The position never goes back.
//
// The package is pure: no I/O, no clock, no goroutine.
package checkpoint

import "github.com/jackc/pglogrepl"

// maxQueued bounds the commits that are remembered (16 bytes each). One stuck row
// holds back the commits of all later transactions, which may go on arriving for as
// long as their rows find room on other lanes.
const maxQueued = 1 << 16

// commit is a transaction that has ended and is not known to be settled.
type commit struct {
	// last is the number of the newest row when the transaction ended: it and all
	// earlier ones are settled once every row up to last is.
	last uint64
	end  pglogrepl.LSN
}

// Watermark follows one replication session. A new session starts a new one, since
// the server sends again whatever was not confirmed. It must not be used by two
// goroutines at once.
type Watermark struct {
	confirmed pglogrepl.LSN
	rows      uint64 // Rows numbered so far.
	open      bool   // Between Begin and Commit.
	// queue[head:] are the waiting commits, oldest first; last strictly increases.
	queue []commit
	head  int
	// keepalive is the highest WAL end that a keepalive has brought.
	keepalive pglogrepl.LSN
}

// New starts at the position that the slot has confirmed.
func New(start pglogrepl.LSN) *Watermark { return &Watermark{confirmed: start} }

// Begin notes that a transaction has begun.
func (w *Watermark) Begin() { w.open = true }

// Row numbers the next row of the open transaction, from 1. Until the transaction
// is committed nothing depends on the row being known to a lane.
func (w *Watermark) Row() uint64 {
	w.rows++
	return w.rows
}

// Commit notes the end of the open transaction. By then each of its rows must be
// settled or unsettled on a lane.
func (w *Watermark) Commit(end pglogrepl.LSN) {
	w.open = false
	if n := len(w.queue); n > w.head && w.queue[n-1].last == w.rows {
		// Nothing of ours in this transaction: it is finished when the one before it
		// is. PostgreSQL 14 sends the empty transactions of the whole database.
		w.queue[n-1].end = max(w.queue[n-1].end, end)
		return
	}
	if len(w.queue) == maxQueued {
		w.compact()
	}
	w.queue = append(w.queue, commit{last: w.rows, end: end})
}

// compact makes room for at least half of maxQueued. Where that takes more than
// dropping what is confirmed, it forgets every second commit, which is safe: the
// next one stands for it, and the position only moves in larger steps.
func (w *Watermark) compact() {
	waiting, step := w.queue[w.head:], 1
	if len(waiting) > maxQueued/2 {
		step = 2
	}
	kept := w.queue[:0]
	for i := step - 1; i < len(waiting); i += step {
		kept = append(kept, waiting[i])
	}
	w.queue, w.head = kept, 0
}

// Keepalive notes the WAL end of a keepalive. It counts once nothing is queued, in
// flight or open; PostgreSQL keeps it below the commit of any transaction that it
// has not sent completely.
func (w *Watermark) Keepalive(walEnd pglogrepl.LSN) { w.keepalive = max(w.keepalive, walEnd) }

// Advance returns the position that may be confirmed now. The caller says what the
// lanes know: oldest is the lowest number of an unsettled row; when none is unsettled
// inFlight is false and oldest is ignored.
func (w *Watermark) Advance(oldest uint64, inFlight bool) pglogrepl.LSN {
	for w.head < len(w.queue) && (!inFlight || w.queue[w.head].last < oldest) {
		w.confirmed = max(w.confirmed, w.queue[w.head].end)
		w.head++
	}
	if w.head == len(w.queue) {
		w.queue, w.head = w.queue[:0], 0
		if !inFlight && !w.open {
			w.confirmed = max(w.confirmed, w.keepalive)
		}
	}
	return w.confirmed
}

// Confirmed returns what Advance returned last.
func (w *Watermark) Confirmed() pglogrepl.LSN { return w.confirmed }

// Open reports whether a transaction has begun and not ended.
func (w *Watermark) Open() bool { return w.open }

// Pending returns the number of commits that wait to be confirmed, at most 65,536;
// transactions without rows, and those that were merged, do not count.
func (w *Watermark) Pending() int { return len(w.queue) - w.head }
