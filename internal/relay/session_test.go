package relay

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// A row is confirmed when it is acknowledged, not when it is sent, by the end of its
// transaction and not by the place of its commit; a keepalive counts once nothing is
// in flight.
func TestConfirmedBehindTheAcknowledgement(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	s, server := begun(t, newRelay(t, kafka, io.Discard))
	stop := running(t, s)
	server.relation("outbox", outboxColumns...)
	server.begin(0x2000)
	server.order(0x1f00, "first")
	server.commit(0x2000, 0x2030)
	server.keepalive(0x2100)
	kafka.wantBatch(t, "first")
	server.begin(0x3000)
	server.insert(0x2f00, "id", "other", "k", "T", "second")
	server.commit(0x3000, 0x3030)
	kafka.wantBatch(t, "second") // so everything before has been read
	if at := s.stream.Confirmed(); at != slotAt {
		t.Errorf("%s is confirmed with rows in flight", at)
	}
	kafka.acknowledge()
	kafka.acknowledge()
	server.waitFlushed(t, 0x3030)
	server.keepalive(0x3100)
	server.waitFlushed(t, 0x3100)
	if err := stop(); err != nil && !strings.Contains(err.Error(), "canceled") {
		t.Errorf("the session ends with %v", err)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	for i, at := range server.statuses {
		if at < slotAt || i > 0 && at < server.statuses[i-1] {
			t.Errorf("the server was told %s after %s", at, server.statuses[max(i-1, 0)])
		}
	}
	if !server.copyDone {
		t.Error("the end of the stream was not awaited")
	}
}

// What is read after a row must not change the row: both are in one buffer of the
// connection.
func TestRowsOutliveTheirMessage(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	s, server := begun(t, newRelay(t, kafka, io.Discard))
	running(t, s)
	server.relation("outbox", outboxColumns...)
	server.begin(0x9000)
	server.order(0x8000, "row-0")
	kafka.wantBatch(t, "row-0") // it is held, while the others gather
	const n = 50
	var want []string
	for i := range n {
		name := "row-" + string(rune('a'+i%26)) + strings.Repeat("x", 1000)
		want = append(want, name)
		server.order(pglogrepl.LSN(0x8001+i), name)
	}
	server.insert(0x8800, "id", "other", "k", "T", "read")
	kafka.wantBatch(t, "read")
	kafka.acknowledge()
	kafka.acknowledge()
	kafka.wantBatch(t, want...)
	kafka.acknowledge()
	server.commit(0x9000, 0x9030)
	server.waitFlushed(t, 0x9030)
}

// A batch without an answer is sent again before any other, and nothing of it or behind
// it is confirmed until it is acknowledged.
func TestUndecidedBatchHoldsThePosition(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	s, server := begun(t, newRelay(t, kafka, io.Discard))
	running(t, s)
	server.relation("outbox", outboxColumns...)
	server.begin(0x2000)
	server.order(0x1f00, "first")
	server.commit(0x2000, 0x2030)
	kafka.wantBatch(t, "first")
	server.begin(0x3000)
	server.order(0x2f00, "second")
	server.commit(0x3000, 0x3030)
	kafka.answer <- func() (broker.Produced, error) { return broker.Produced{}, io.EOF }
	kafka.wantBatch(t, "first")
	if at := s.stream.Confirmed(); at != slotAt {
		t.Errorf("%s is confirmed", at)
	}
	kafka.acknowledge()
	kafka.wantBatch(t, "second")
	server.waitFlushed(t, 0x2030)
	kafka.acknowledge()
	server.waitFlushed(t, 0x3030)
}

// A stop ends at the end of the open transaction, waits for what it has read, and
// leaves nothing of it unconfirmed.
func TestStopAtTheEndOfTheTransaction(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	s, server := begun(t, newRelay(t, kafka, io.Discard))
	stop := running(t, s)
	server.relation("outbox", outboxColumns...)
	server.begin(0x2000)
	server.order(0x1f00, "first")
	kafka.wantBatch(t, "first")
	ended := make(chan struct{})
	go func() { defer close(ended); _ = stop() }()
	<-s.quit // the stop has begun
	server.order(0x1f10, "last")
	server.commit(0x2000, 0x2030)
	server.begin(0x3000)
	server.order(0x2f00, "never")
	kafka.acknowledge()
	kafka.wantBatch(t, "last")
	kafka.acknowledge()
	<-ended
	if at, _ := server.flushed(); at != 0x2030 {
		t.Errorf("the server was told %s, want 0/2030", at)
	}
	select {
	case got := <-kafka.arrived:
		t.Errorf("another batch was sent: %q", got)
	default:
	}
}

// A row that cannot be mapped, and a table that lacks what is needed, are never
// passed over: nothing behind them is read until somebody has acted.
func TestBarriers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send func(*walsender)
		want string
	}{
		"column is NULL": {func(w *walsender) {
			w.relation("outbox", outboxColumns...)
			w.copy(append(xlog(0x1f00).u8('I').u32(42).u8('N').u16(5), "nnnnn"...))
		}, "row at 0/1F00 of the transaction that commits at 0/2000"},
		"table is not configured": {func(w *walsender) {
			w.relation("outbox_old", outboxColumns...)
			w.order(0x1f00, "first")
		}, "outbox_old"},
		"column is gone": {func(w *walsender) { w.relation("outbox", "id", "aggregatetype", "aggregateid", "type") }, "payload"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kafka := newBrokers()
			r := newRelay(t, kafka, io.Discard)
			s, server := begun(t, r)
			stop := running(t, s)
			server.begin(0x2000)
			c.send(server)
			server.relation("outbox", outboxColumns...)
			server.order(0x1f10, "behind")
			server.commit(0x2000, 0x2030)
			server.keepalive(0x2100)
			waitForStack(t, s, "relay.(*session).halt(", "select")
			if problems := strings.Join(r.Status().Problems, "\n"); !strings.Contains(problems, c.want) {
				t.Errorf("problems are %q", problems)
			}
			_ = stop()
			if at, _ := server.flushed(); at != slotAt {
				t.Errorf("%s is confirmed", at)
			}
			if len(kafka.arrived) > 0 {
				t.Errorf("what is behind was sent: %q", <-kafka.arrived)
			}
		})
	}
}

// While the source cannot be trusted nothing is taken from it.
func TestClosedGate(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	s, server := begun(t, newRelay(t, kafka, io.Discard))
	s.gate.close()
	running(t, s)
	server.relation("outbox", outboxColumns...)
	server.begin(0x2000)
	server.order(0x1f00, "first")
	server.commit(0x2000, 0x2030)
	waitForStack(t, s, "relay.(*session).pass(", "select")
	if s.inTransaction() {
		t.Error("something was taken")
	}
	if !s.unconfirmed() {
		t.Error("a server that shuts down would wait for what is not read")
	}
	s.gate.open()
	kafka.wantBatch(t, "first")
	kafka.acknowledge()
	server.waitFlushed(t, 0x2030)
}

// A row is sent as soon as there is no other to wait for.
func TestLoneRowIsSentAtOnce(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	s, server := begun(t, newRelay(t, kafka, io.Discard))
	running(t, s)
	server.relation("outbox", outboxColumns...)
	server.begin(0x2000)
	for i, payload := range []string{"first", "second", "third"} { // of a lane that has nothing to do
		server.order(pglogrepl.LSN(0x1f00+i), payload)
		kafka.wantBatch(t, payload)
		kafka.acknowledge()
		for limit := time.Now().Add(10 * time.Second); s.r.publisher.Snapshot().Rows > 0 && time.Now().Before(limit); {
			runtime.Gosched()
		}
	}
}

// An answer of the lanes from before a commit was queued does not know its rows.
func TestSettleAsksTheLanesUnderTheLock(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	s, server := begun(t, r)
	server.keepalive(0x2000)
	if _, err := s.stream.Next(); err != nil { // may be confirmed now
		t.Fatal(err)
	}
	s.mu.Lock()
	settled := make(chan error)
	go settleInTheWay(s, settled)
	waitForStack(t, s, "relay.settleInTheWay(", "sync.(*Mutex).Lock")
	s.mark.Begin()
	row := publish.Record{Topic: "t", Seq: s.mark.Row(), Position: position.Position{Commit: 0x1f00}, Time: time.Now()}
	if err := r.publisher.Publish(t.Context(), &row); err != nil {
		t.Fatal(err)
	}
	s.mark.Commit(0x2000)
	s.mu.Unlock()
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if at := s.stream.Confirmed(); at != slotAt {
		t.Errorf("%s is confirmed though its row is not acknowledged", at)
	}
}

func settleInTheWay(s *session, settled chan<- error) { settled <- s.settle() }

// waitForStack waits until a goroutine of s has all the words in its stack.
func waitForStack(t *testing.T, s *session, words ...string) {
	t.Helper()
	words = append(words, fmt.Sprintf("(%p", s))
	buf := make([]byte, 1<<20)
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); runtime.Gosched() {
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(g, w) }) {
				return
			}
		}
	}
	t.Fatalf("no goroutine is at %q", words)
}

// Dispatcher and settler confirm at the same time. A position that was found under the
// lock is told under it: else the other could tell a higher one first, the stream would
// refuse the lower one, and the session would end.
func TestSettleConfirmsUnderTheLock(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	s, server := begun(t, r)
	server.keepalive(0x2000)
	if _, err := s.stream.Next(); err != nil { // may be confirmed now
		t.Fatal(err)
	}
	s.mark.Keepalive(0x2000)
	r.state.mu.Lock() // what settle does after it has told the stream waits for this
	settled := make(chan error)
	go settleInTheWay(s, settled)
	waitForStack(t, s, "relay.settleInTheWay(", "relay.(*state).moved(", "sync.(*Mutex).Lock")
	if s.mu.TryLock() {
		t.Error("the lock is not held")
		s.mu.Unlock()
	}
	r.state.mu.Unlock()
	if err := <-settled; err != nil || s.stream.Confirmed() != 0x2000 {
		t.Errorf("settle = %v, confirmed %s", err, s.stream.Confirmed())
	}
}
