package checkpoint_test

import (
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"
)

// watermark is what the schedules drive: the real one, or a mutant.
type watermark interface {
	Begin()
	Row() uint64
	Commit(end pglogrepl.LSN)
	Keepalive(walEnd pglogrepl.LSN)
	Advance(oldest uint64, inFlight bool) pglogrepl.LSN
	Open() bool
	Pending() int
}

// row is one row of the log. A row outlives sessions: settled means what the lanes
// of the current session know.
type row struct {
	lane    int
	settled bool
	refused bool // Cannot be published; holds its lane.
	passed  bool // Its dead letter is committed, its marker has not come back.
}

// txn is one transaction of the server's log. commit is where its commit record
// starts: a server that restarts at a position beyond it never sends it again.
type txn struct {
	rows        []*row
	commit, end pglogrepl.LSN
}

type inFlight struct {
	number uint64
	row    *row
}

// world is a server with its log, the lanes, and a full account of every row. It
// knows the rules, and nothing of how a watermark keeps them.
type world struct {
	pick func(n int) int // A choice in [0, n).
	make func(start pglogrepl.LSN) watermark
	bug  string // A mistake, one of the bug constants.

	log []*txn
	wal pglogrepl.LSN // End of the log so far.

	// The session.
	w          watermark
	start      pglogrepl.LSN
	first      int             // log[first:] is what the session sends.
	next       int             // log[first:next] has been sent to its commit.
	sent       int             // Rows of log[next] sent, when open.
	open       bool            // log[next] has begun.
	waiting    *inFlight       // A numbered row that no lane has taken yet.
	keepalives []pglogrepl.LSN // All that came.
	lanes      map[int][]inFlight
	confirmed  pglogrepl.LSN
}

const lanes = 3

// runSchedule plays one schedule and returns the first broken rule.
func runSchedule(steps int, pick func(int) int, bug string, newWatermark func(pglogrepl.LSN) watermark) error {
	start := pglogrepl.LSN(pick(2)) * 1000
	w := &world{pick: pick, make: newWatermark, bug: bug, wal: start}
	w.connect(start)
	for range steps {
		if err := w.step(); err != nil {
			return err
		}
		if w.pick(2) == 0 {
			if err := w.advance(); err != nil {
				return err
			}
		}
	}
	return w.drain()
}

func (w *world) step() error {
	switch w.pick(16) {
	case 0, 1, 2, 3, 4, 5, 6:
		w.receive()
	case 7:
		w.receiveKeepalive()
	case 8, 9, 10:
		w.settle(w.pick(lanes), 1+w.pick(3))
	case 11:
		w.refuse(w.pick(lanes))
	case 12:
		w.deadLetter(w.pick(lanes))
	case 13:
		w.markers(w.pick(lanes))
	case 14:
		w.closeLane(w.pick(lanes))
	case 15:
		if w.pick(4) == 0 {
			w.connect(w.confirmed)
		}
	}
	if w.bug == "" && w.w.Open() != w.open {
		return fmt.Errorf("Open() = %t, want %t", w.w.Open(), w.open)
	}
	return nil
}

// connect begins a session at the position that the slot has confirmed. Nothing
// queued survives; what the lanes know to be settled does, or is published again.
func (w *world) connect(start pglogrepl.LSN) {
	if w.w == nil || w.bug != bugSurvives {
		w.w = w.make(start)
	}
	w.start, w.confirmed = start, start
	w.open, w.sent, w.waiting, w.keepalives = false, 0, nil, nil
	w.lanes = map[int][]inFlight{}
	w.first = slices.IndexFunc(w.log, func(t *txn) bool { return t.commit >= start })
	if w.first < 0 {
		w.first = len(w.log)
	}
	w.next = w.first
	for _, t := range w.log[w.first:] {
		for _, r := range t.rows {
			r.refused, r.passed = false, false
			r.settled = r.settled && w.pick(3) > 0
		}
	}
}

// receive takes the next event of the stream, or hands the row that waits for room
// to its lane.
func (w *world) receive() {
	if w.waiting != nil && w.bug != bugLateLane {
		w.handOver()
		return
	}
	if !w.open {
		w.begin()
		return
	}
	t := w.log[w.next]
	if w.sent == len(t.rows) {
		w.w.Commit(t.end)
		w.open, w.next = false, w.next+1
		return
	}
	if w.waiting != nil {
		w.handOver()
	}
	if w.bug == bugEarlyCommit && w.sent == len(t.rows)-1 {
		w.w.Commit(t.end)
	}
	w.waiting = &inFlight{number: w.w.Row(), row: t.rows[w.sent]}
	w.sent++
	if w.pick(2) == 0 && w.bug != bugLateLane {
		w.handOver()
	}
}

func (w *world) begin() {
	if w.next == len(w.log) {
		t := &txn{commit: w.wal + pglogrepl.LSN(1+w.pick(5))}
		t.end = t.commit + pglogrepl.LSN(1+w.pick(3))
		for range max(0, w.pick(6)-2) {
			t.rows = append(t.rows, &row{lane: w.pick(lanes)})
		}
		w.log, w.wal = append(w.log, t), t.end
	}
	w.w.Begin()
	w.open, w.sent = true, 0
}

func (w *world) handOver() {
	if !w.waiting.row.settled {
		lane := w.waiting.row.lane
		w.lanes[lane] = append(w.lanes[lane], *w.waiting)
	}
	w.waiting = nil
}

// receiveKeepalive brings a WAL end that a server may send here: not below what it
// has sent, below the commit record of what it has not sent completely, sometimes
// an old one again.
func (w *world) receiveKeepalive() {
	low := w.start
	if w.next > w.first {
		low = w.log[w.next-1].end
	}
	for _, k := range w.keepalives {
		low = max(low, k)
	}
	end := low + pglogrepl.LSN(w.pick(4))
	switch {
	case w.pick(8) == 0:
		end = w.start
	case w.next < len(w.log):
		end = min(end, w.log[w.next].commit)
	default:
		w.wal = max(w.wal, end)
	}
	w.w.Keepalive(end)
	w.keepalives = append(w.keepalives, end)
}

// settle acknowledges up to n rows of a lane, in order. A refused row ends the
// batch unless its dead letter is committed.
func (w *world) settle(lane, n int) {
	var rest []inFlight
	held := false
	for _, f := range w.lanes[lane] {
		held = held || n == 0 || f.row.refused && !f.row.passed
		if held || f.row.passed {
			rest = append(rest, f)
			continue
		}
		f.row.settled = true
		n--
	}
	w.lanes[lane] = rest
}

func (w *world) refuse(lane int) {
	if q := w.lanes[lane]; len(q) > 0 {
		q[0].row.refused = true
	}
}

func (w *world) deadLetter(lane int) {
	for _, f := range w.lanes[lane] {
		f.row.passed = f.row.passed || f.row.refused
	}
}

// markers brings back the markers of the lane's dead letters: these rows are settled.
func (w *world) markers(lane int) {
	w.lanes[lane] = slices.DeleteFunc(w.lanes[lane], func(f inFlight) bool {
		f.row.settled = f.row.settled || f.row.passed
		return f.row.passed
	})
}

func (w *world) closeLane(lane int) {
	if len(w.lanes[lane]) == 0 {
		delete(w.lanes, lane)
	}
}

// oldest asks every lane for its oldest unsettled row.
func (w *world) oldest() (uint64, bool) {
	var least, most uint64
	for _, q := range w.lanes {
		if len(q) == 0 {
			continue
		}
		if least == 0 || q[0].number < least {
			least = q[0].number
		}
		most = max(most, q[0].number)
	}
	if w.bug == bugMaximum {
		return most, most > 0
	}
	return least, least > 0
}

func (w *world) advance() error {
	oldest, busy := w.oldest()
	got := w.w.Advance(oldest, busy)
	if err := w.judge(got); err != nil {
		return fmt.Errorf("Advance(%d, %t) = %d: %w", oldest, busy, got, err)
	}
	w.confirmed = got
	if limit := w.unconfirmed(); w.w.Pending() > limit {
		return fmt.Errorf("Pending() = %d with %d unconfirmed transactions that have rows", w.w.Pending(), limit)
	}
	return nil
}

// drain lets everything happen that is still due, after which the position must be
// the end of all that came.
func (w *world) drain() error {
	for w.open || w.next < len(w.log) {
		w.receive()
	}
	if w.waiting != nil {
		w.handOver()
	}
	for lane := range lanes {
		w.deadLetter(lane)
		w.markers(lane)
		w.settle(lane, len(w.lanes[lane]))
	}
	want := w.confirmed
	for _, t := range w.log[w.first:] {
		want = max(want, t.end)
	}
	for _, k := range w.keepalives {
		want = max(want, k)
	}
	if err := w.advance(); err != nil {
		return fmt.Errorf("drained: %w", err)
	}
	if w.confirmed != want || w.w.Pending() != 0 {
		return fmt.Errorf("drained: confirmed %d with %d pending, want %d with none", w.confirmed, w.w.Pending(), want)
	}
	return nil
}
