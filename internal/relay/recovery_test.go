package relay

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

// ran runs a relay until the test or stop ends it.
func ran(t *testing.T, r *Relay) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.sessions(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// stamp is what the header of a row of order says.
func stamp(r *Relay, history string, timeline uint32, commit, lsn pglogrepl.LSN, payload string) position.Stamp {
	routing := r.cfg.Routing
	routing.Database = "shop"
	return position.Stamp{
		History: position.HashHistory(history), Timeline: timeline, Fingerprint: routing.Fingerprint(), Partitions: 1,
		Position: position.Position{Commit: commit, LSN: lsn, Kind: position.Row},
		IDHash:   position.HashID([]byte("id-" + payload)),
	}
}

// single sends a transaction of one row of topic t.
func (w *walsender) single(commit pglogrepl.LSN, payload string) {
	w.begin(commit)
	w.order(commit-0x100, payload)
	w.commit(commit, commit+0x30)
}

// What recovery rests on is read once the slot is ours. A standby has seen another
// slot, another end of the log and another history: what it finds on the topic would
// be of no use, and what it would report to the server of another holder's time.
func TestStandbyForgetsWhatItHasSeen(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r := newRelay(t, kafka, io.Discard)
	server := newFakeServer(t, r)
	server.thief = 99
	ran(t, r)
	waitFor(t, func() bool { return r.Status().Role == RoleStandby })
	kafka.holds("t", stamp(r, "h2", 1, 0x5000, 0x4f00, "sent"))
	server.set(func(f *fakeCatalog) {
		f.thief, f.confirmed, f.walEnd, f.row.history = 0, 0x3000, 0x6000, "h2"
	})
	w := server.streams(t)
	w.relation("outbox", outboxColumns...)
	w.single(0x5000, "sent")
	w.single(0x7000, "new")
	kafka.wantBatch(t, "new")
	kafka.acknowledge()
	w.waitFlushed(t, 0x7030)
	if n := kafka.records("t"); n != 2 {
		t.Errorf("the topic holds %d records, want the one that was sent and the new one", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.statuses[0] != 0x3000 {
		t.Errorf("the first position reported is %s, not the slot's", w.statuses[0])
	}
}

// What lies before the slot's position will not come again, so nothing waits for it.
func TestTopicThatEndsWithWhatIsConfirmed(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r := newRelay(t, kafka, io.Discard)
	server := newFakeServer(t, r)
	server.walEnd = 0x8000
	kafka.holds("t", stamp(r, "h", 1, slotAt-0x100, slotAt-0x200, "confirmed"))
	ran(t, r)
	w := server.streams(t)
	w.relation("outbox", outboxColumns...)
	w.single(0x2000, "first")
	kafka.wantBatch(t, "first")
	kafka.acknowledge()
	w.waitFlushed(t, 0x2030)
	if n := r.metrics.histories.Load(); n > 0 {
		t.Errorf("%d alarms", n)
	}
}

// Rows that are passed over because they seem to be on the topic hold the position
// like rows in flight, until the row that the topic ends with has come by.
func TestRowsPassedOverHoldThePosition(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r := newRelay(t, kafka, io.Discard)
	server := newFakeServer(t, r)
	server.walEnd = 0x8000
	kafka.holds("t", stamp(r, "h", 1, 0x4000, 0x3f00, "anchor"))
	ran(t, r)
	w := server.streams(t)
	w.relation("outbox", outboxColumns...)
	w.single(0x2000, "before")
	w.keepalive(0x2100)
	w.begin(0x3000)
	w.insert(0x2f00, "id", "other", "k", "T", "mark")
	w.commit(0x3000, 0x3030)
	kafka.wantBatch(t, "mark") // so what is before has been read
	kafka.acknowledge()
	waitFor(t, func() bool { return r.Status().Publisher.Rows == 0 })
	before, _ := w.count()
	waitFor(t, func() bool { n, _ := w.count(); return n > before+1 })
	if at, _ := w.flushed(); at != slotAt {
		t.Errorf("%s is confirmed, though nothing proves that the row before is on the topic", at)
	}
	w.single(0x4000, "anchor")
	w.waitFlushed(t, 0x4030)
	w.single(0x5000, "new")
	kafka.wantBatch(t, "new")
	kafka.acknowledge()
	w.waitFlushed(t, 0x5030)
}

// A topic that ends with a row which this log has not reached, or has otherwise, was
// written from another history. That is an alarm. The history is renewed once, with
// the slot held, and everything that is not confirmed is published.
func TestDoubtedHistory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		commit  pglogrepl.LSN // of the row that the topic ends with
		then    func(*walsender)
		renewed bool // by another relay that had the slot in between
	}{
		"beyond the end of the log": {0x9000, func(*walsender) {}, false},
		"another row in its place":  {0x2000, func(*walsender) {}, false},
		"passed by a keepalive":     {0x2800, func(w *walsender) { w.keepalive(0x3000) }, false},
		"passed by a transaction":   {0x2800, func(w *walsender) { w.begin(0x3000); w.commit(0x3000, 0x3030) }, false},
		"renewed by another relay":  {0x9000, func(*walsender) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logBuffer
			kafka := newBrokers()
			r := newRelay(t, kafka, &log)
			server := newFakeServer(t, r)
			server.walEnd = 0x8000
			kafka.holds("t", stamp(r, "h", 1, c.commit, c.commit-0x100, "foreign"))
			if c.renewed {
				first := true
				server.onSlot = func(f *fakeCatalog) { // once the first session has ended
					if strings.Contains(log.String(), "not of one history") && first {
						first, f.row.history = false, "h2"
					}
				}
			}
			ran(t, r)
			w := server.streams(t)
			w.relation("outbox", outboxColumns...)
			w.single(0x2000, "first")
			c.then(w)
			w = server.streams(t)
			w.relation("outbox", outboxColumns...)
			w.single(0x2000, "first")
			kafka.wantBatch(t, "first", position.Stamp{History: position.HashHistory(map[bool]string{true: "h2", false: "h'"}[c.renewed])}.String()[:19])
			kafka.acknowledge()
			w.waitFlushed(t, 0x2030)
			text := log.String()
			if strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "topic=t partition=0") || !strings.Contains(text, "after=0/1000") {
				t.Errorf("the alarm: %s", text)
			}
			server.set(func(f *fakeCatalog) {
				if renewals := len(f.renewals); (renewals == 1) == c.renewed || renewals > 1 {
					t.Errorf("renewed %d times", renewals)
				}
				for _, by := range f.renewals {
					if by != w.pid {
						t.Errorf("renewed by %d, which has not the slot", by)
					}
				}
			})
			if n := r.metrics.histories.Load(); (n == 1) == c.renewed {
				t.Errorf("history_renewed_total is %d", n)
			}
		})
	}
}

// Behind the last renewal the same history is not doubted again.
func TestHistoryIsRenewedOnce(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	r.doubted = "h"
	for range 3 {
		s, _ := acquired(t, r, server)
		if err := s.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.close(t.Context())
	}
	if len(server.renewals) != 1 || server.row.history != "h'" {
		t.Errorf("renewed %d times, the history is %s", len(server.renewals), server.row.history)
	}
}

// A server that lost the slot to another between the look and the renewal renews
// nothing.
func TestNoRenewalWithoutTheSlot(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	r.doubted = "h"
	s, _ := acquired(t, r, server)
	server.set(func(f *fakeCatalog) { f.thief = 99 })
	if err := s.begin(t.Context()); err == nil {
		t.Error("begins though another connection has the slot")
	}
	if len(server.renewals) > 0 || r.doubted == "" {
		t.Errorf("renewed by %v", server.renewals)
	}
}

// haltBriefly has r try again after a second while it is halted, with four status
// updates in it.
func haltBriefly(r *Relay) {
	r.halt, r.cfg.WAL.WALSenderTimeout = time.Second, 3*time.Second
}

// A topic that a later primary has written to halts the relay. It keeps the slot
// meanwhile, tries again, and goes on once the operator has accepted the server.
func TestLaterPrimaryHalts(t *testing.T) {
	t.Parallel()
	var log logBuffer
	kafka := newBrokers()
	r := newRelay(t, kafka, &log)
	server := newFakeServer(t, r)
	haltBriefly(r)
	server.walEnd = 0x8000
	kafka.holds("t", stamp(r, "h", 2, 0x9000, 0x8f00, "later"))
	ran(t, r)
	w := server.streams(t)
	w.relation("outbox", outboxColumns...)
	w.single(0x2000, "first")
	waitFor(t, func() bool { return strings.Contains(log.String(), "cdc-relay init --accept-server") })
	status := r.Status()
	if problems := strings.Join(status.Problems, "\n"); !strings.Contains(problems, "--accept-server") || status.Role != RoleLeader {
		t.Errorf("%s, %q", status.Role, problems)
	}
	statuses, _ := w.count()
	waitFor(t, func() bool { n, _ := w.count(); return n > statuses+1 }) // a second and more
	if _, gone := w.count(); gone {
		t.Error("the slot is let go at once")
	}
	for range 2 { // tried anew
		w = server.streams(t)
		w.relation("outbox", outboxColumns...)
		w.single(0x2000, "first")
	}
	if at, _ := w.flushed(); at > slotAt || len(kafka.arrived) > 0 {
		t.Errorf("confirmed %s, sent %d batches", at, len(kafka.arrived))
	}
	server.set(func(f *fakeCatalog) { f.row.history = "accepted" })
	kafka.acknowledge()
	for limit := time.After(10 * time.Second); len(kafka.arrived) == 0; {
		select {
		case w = <-server.senders:
			w.relation("outbox", outboxColumns...)
			w.single(0x2000, "first")
		case <-w.told(): // in this very session, if it has begun late
		case <-limit:
			t.Fatal("does not go on")
		}
	}
	w.waitFlushed(t, 0x2030)
	waitFor(t, func() bool { return r.Status().Ready() })
	if n := strings.Count(log.String(), "--accept-server"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
}

// What cannot be decoded halts with the slot held, too, and so does what the checks
// find once it is held.
func TestHaltKeepsTheSlot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(*fakeCatalog)
		then   func(*walsender)
		says   string
		cure   func(*fakeCatalog)
	}{
		"message that cannot be decoded": {
			func(*fakeCatalog) {}, func(w *walsender) { w.copy(wire{'w', 1, 2}) }, "replication protocol", func(*fakeCatalog) {},
		},
		"server of a former primary": {
			func(f *fakeCatalog) { f.systemID = "2" }, func(*walsender) {}, "--accept-server", func(f *fakeCatalog) { f.systemID = "1" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelay(t, newBrokers(), io.Discard)
			server := newFakeServer(t, r)
			haltBriefly(r)
			c.before(server.fakeCatalog)
			ran(t, r)
			w := server.streams(t)
			c.then(w)
			waitFor(t, func() bool { return strings.Contains(strings.Join(r.Status().Problems, "\n"), c.says) })
			began, before := time.Now(), len(server.row.saved)
			statuses, _ := w.count()
			waitFor(t, func() bool { n, _ := w.count(); return n > statuses+1 })
			if _, gone := w.count(); gone || r.Status().Role != RoleLeader {
				t.Errorf("the slot is let go after %v", time.Since(began))
			}
			if len(server.row.saved) > before {
				t.Errorf("saved %q", server.row.saved)
			}
			server.set(c.cure)
			w = server.streams(t)
			w.keepalive(0x1800)
			w.waitFlushed(t, 0x1800)
			waitFor(t, func() bool { return r.Status().Ready() })
		})
	}
}

// A stop in the middle of a halt leaves as any other stop.
func TestStopWhileHalted(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	stop := ran(t, r)
	w := server.streams(t)
	w.copy(wire{'w', 1, 2})
	waitFor(t, func() bool { return strings.Contains(strings.Join(r.Status().Problems, "\n"), "replication protocol") })
	began := time.Now()
	_ = stop()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("takes %v", took)
	}
	if !server.row.clean || server.row.confirmed != slotAt.String() || !w.copyDone {
		t.Errorf("the row says %+v, the copy was ended: %v", server.row, w.copyDone)
	}
}
