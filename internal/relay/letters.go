package relay

import (
	"container/heap"
	"encoding/hex"
	"sync"

	"github.com/jackc/pglogrepl"
)

// marker is what the logical message holds that was written with a dead letter: a
// number that the relay has drawn, so that nobody else can make the message.
type marker [16]byte

func parseMarker(text []byte) (m marker, ok bool) {
	if len(text) != 2*len(m) {
		return m, false
	}
	_, err := hex.Decode(m[:], text)
	return m, err == nil
}

// holds are the rows of a session that are settled in the table of dead letters,
// which is not enough to confirm them: only once the server has sent what was
// written with the letter is the letter as durable as the position. Where a standby
// must have the log before the relay sees it, it is on the standby then.
//
// A row is entered here before its lane is done with it, so whoever asks the lanes
// first and these afterwards misses none.
//
// There is an entry for each dead letter whose marker is still to come, some 80
// bytes. Markers come behind the transaction of their row, so these are the dead
// letters of about one transaction; the breaker bounds their share.
type holds struct {
	mu      sync.Mutex
	waiting map[marker]bool // true: the letter is known to be in the table
	passed  pglogrepl.LSN   // how far the stream has come
	rows    holdHeap        // also some that nothing holds any more
}

// hold is one row that is held: by a marker, or until the stream has reached a
// position.
type hold struct {
	seq    uint64
	marker marker
	until  pglogrepl.LSN
}

func newHolds() *holds { return &holds{waiting: map[marker]bool{}} }

// await holds a row until the marker has come. written says that the letter is
// in the table for certain.
func (h *holds) await(seq uint64, m marker, written bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting[m] = written
	heap.Push(&h.rows, hold{seq: seq, marker: m})
}

// awaitPosition holds a row until the stream has reached a position. What was
// written to the log before it has been sent then.
func (h *holds) awaitPosition(seq uint64, lsn pglogrepl.LSN) {
	h.mu.Lock()
	defer h.mu.Unlock()
	heap.Push(&h.rows, hold{seq: seq, until: lsn})
}

// written notes that the letter of a marker is in the table.
func (h *holds) written(m marker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, waits := h.waiting[m]; waits {
		h.waiting[m] = true
	}
}

// came notes that a marker, or nothing, has come by, and reports whether one was
// awaited.
func (h *holds) came(m marker) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, waits := h.waiting[m]
	delete(h.waiting, m)
	return waits
}

// awaits reports whether a marker is still to come.
func (h *holds) awaits(m marker) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, waits := h.waiting[m]
	return waits
}

// reached notes how far the stream has come: it has sent every transaction that
// was committed before.
func (h *holds) reached(lsn pglogrepl.LSN) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passed = max(h.passed, lsn)
}

// oldest is the lowest number of a row that is held.
func (h *holds) oldest() (seq uint64, any bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.rows) > 0 {
		row := h.rows[0]
		_, held := h.waiting[row.marker]
		if row.until != 0 {
			held = !reached(h.passed, row.until)
		}
		if held {
			return row.seq, true
		}
		heap.Pop(&h.rows)
	}
	return 0, false
}

// pending counts the rows that only a marker is missing for.
func (h *holds) pending() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, written := range h.waiting {
		if written {
			n++
		}
	}
	return n
}

// holdHeap has the lowest row first.
type holdHeap []hold

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].seq < h[j].seq }
func (h holdHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *holdHeap) Push(row any)      { *h = append(*h, row.(hold)) }
func (h *holdHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
