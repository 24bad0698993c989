package publish_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestDeadRows: rows that are dead letters already are not sent, though their neighbours
// are, in order; nor do they hold up anything.
func TestDeadRows(t *testing.T) {
	run(t, publish.Config{}, newModel("t", 1), func(r *rig) {
		r.settle(time.Second)
		r.alive.Store(false)
		for i := range 10 {
			if i == 0 || i == 4 || i == 5 || i == 9 {
				r.dead(i)
			} else {
				r.publish(r.record(i, "t", "key"))
			}
		}
		r.alive.Store(true)
		r.drain(time.Second)
		r.wantValues("t", 0, "1 2 3 6 7 8")
		if got := r.p.Snapshot(); got.Rows != 0 || got.Bytes != 0 {
			t.Errorf("%d rows and %d bytes are held", got.Rows, got.Bytes)
		}
	})
}

// TestDeadWithoutLane: a dead row needs no lane.
func TestDeadWithoutLane(t *testing.T) {
	run(t, publish.Config{MaxRequestBytes: 1024}, newModel("t", 1), func(r *rig) {
		rec := r.record(0, "no topic", "key")
		rec.Dead = true
		r.publish(rec)
		big := r.record(1, "t", "key")
		big.Value, big.Dead = make([]byte, 2000), true
		r.publish(big)
		r.drain(time.Second)
		r.wantSettled()
	})
}

// TestDeadRowProvesAnchor: a dead letter that may have been published, and was, is the
// highest row of its partition: the next process takes it for its anchor, which the row
// proves when it comes by as what it is.
func TestDeadRowProvesAnchor(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	run(t, attempting(s, 1), m, func(r *rig) {
		r.put(2)
		r.drain(time.Second)
		m.with(func() { m.topics["t"][0].faults = []fault{requestLate} })
		r.put(1)
		r.drain(time.Minute)
		if got := s.said(); got != "2:attempts:1?" {
			t.Fatalf("dead letters %q", got)
		}
		r.locked(func(p *modelPartition) { // It lands after all.
			for _, raw := range p.late {
				m.append(p, raw)
			}
			p.late = nil
		})
		r.wantValues("t", 0, "0 1 2")
		for _, from := range []int{1, 2} {
			r.restart(from)
			for i := from; i < 2; i++ {
				r.publish(r.record(i, "t", "key"))
			}
			r.dead(2)
			r.drain(time.Minute)
			r.wantNoReset()
		}
		r.put(1)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2 3")
	})
}

// TestDeadRowBelowAnchor: one before the anchor does not end the provisional skip.
func TestDeadRowBelowAnchor(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.refuse = func(v string) bool { return v == "1" }
	run(t, keeping(s), m, func(r *rig) {
		r.put(4)
		r.drain(time.Minute)
		r.restart(0)
		r.publish(r.record(0, "t", "key"))
		r.dead(1)
		r.publish(r.record(2, "t", "key"))
		r.settle(time.Second)
		if got := r.oldest(); got != 1 {
			t.Errorf("oldest = %d, want 1: nothing is proved yet", got)
		}
		r.publish(r.record(3, "t", "key"))
		r.drain(time.Minute)
		r.wantNoReset()
		r.wantValues("t", 0, "0 2 3")
		r.wantMetric("resume_rows_skipped_total", 3)
	})
}

// TestLetterIsNoSettledRow: where the letter is lost, with the standby that was promoted
// without it, its row is published: the lane has never had it acknowledged.
func TestLetterIsNoSettledRow(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	bad := true
	m.refuse = func(v string) bool { return bad && v == "2" }
	run(t, keeping(s), m, func(r *rig) {
		r.put(3)
		r.drain(time.Minute)
		m.with(func() { bad = false })
		r.reconnect(1)
		r.replay(1)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2")
		r.reconnect(1)
		r.replay(1)
		r.put(1)
		r.drain(time.Minute)
		r.wantNoReset()
		r.wantValues("t", 0, "0 1 2 3")
	})
}

// TestLetterThatLandsLater: a dead letter that turns up in the partition is no anchor for
// rows behind it: it has gone by, and does not come again in this session.
func TestLetterThatLandsLater(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	run(t, attempting(s, 1), m, func(r *rig) {
		r.put(1)
		r.drain(time.Second)
		m.with(func() { m.topics["t"][0].faults = []fault{requestLate, requestLost} })
		r.put(1) // Given up; it lands when the next request arrives.
		r.drain(time.Minute)
		r.put(1) // Given up: the partition is read, and ends with the one before.
		r.drain(time.Minute)
		r.put(1)
		r.drain(time.Minute)
		r.wantNoReset()
		r.wantValues("t", 0, "0 1 3")
		if got, want := s.said(), "1:attempts:1? 2:attempts:1?"; got != want {
			t.Errorf("dead letters %q, want %q", got, want)
		}
	})
}
