package relay

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// refuse lets a batch that has arrived, or the next one, be refused for its size.
func (b *brokers) refuse() {
	b.answer <- func() (broker.Produced, error) {
		return broker.Produced{Code: int(kafka.MessageSizeTooLarge)}, nil
	}
}

// nulls inserts a row of nothing but NULLs.
func (w *walsender) nulls(lsn pglogrepl.LSN) {
	w.copy(append(xlog(lsn).u8('I').u32(42).u8('N').u16(5), "nnnnn"...))
}

// nameless inserts an event whose topic no broker allows.
func (w *walsender) nameless(lsn pglogrepl.LSN, payload string) {
	w.insert(lsn, "id-"+payload, "no topic", "k", "T", payload)
}

// unmoved checks that nothing is confirmed, once everything that was sent is read.
func unmoved(t *testing.T, s *session) {
	t.Helper()
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	if at := s.stream.Confirmed(); at != slotAt {
		t.Errorf("%s is confirmed before the marker has come", at)
	}
}

// kept returns a running session that keeps its dead letters, and both ends.
func kept(t *testing.T, log io.Writer) (*session, *letterBox, *brokers, *walsender) {
	t.Helper()
	kafka := newBrokers()
	r, box := newKeepingRelay(t, kafka, log)
	s, server := begun(t, r)
	server.relation("outbox", outboxColumns...)
	return s, box, kafka, server
}

// What no lane or no broker takes becomes a dead letter with all there is of it, and
// what is behind goes on; the position passes once the marker has come by.
func TestDeadLetterHoldsThePosition(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send  func(*walsender, *brokers)
		check func(*deadletter.Letter) bool
	}{
		"row of NULLs": {
			func(w *walsender, _ *brokers) { w.nulls(0x1f00) },
			func(l *deadletter.Letter) bool {
				return l.Reason == deadletter.InvalidRow && l.MessageID == nil && l.Topic == "" && l.ValueBytes == -1 && l.ValueKept
			},
		},
		"topic that cannot be": {
			func(w *walsender, _ *brokers) { w.nameless(0x1f00, "bad") },
			func(l *deadletter.Letter) bool {
				return l.Reason == deadletter.InvalidTopic && l.Topic == "no topic" && string(l.MessageID) == "id-bad" &&
					string(l.Value) == "bad" && l.ValueBytes == 3 && l.Type == "T" && string(l.Key) == "k"
			},
		},
		"too large alone": {
			func(w *walsender, b *brokers) { w.order(0x1f00, "bad"); b.refuse() },
			func(l *deadletter.Letter) bool {
				return l.Reason == deadletter.TooLarge && l.Topic == "t" && string(l.Value) == "bad" && l.Attempts == 1
			},
		},
		"value too large to keep": {
			func(w *walsender, _ *brokers) { w.nameless(0x1f00, strings.Repeat("x", 2000)) },
			func(l *deadletter.Letter) bool { return l.Value == nil && !l.ValueKept && l.ValueBytes == 2000 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logBuffer
			s, box, kafka, server := kept(t, &log)
			running(t, s)
			server.begin(0x2000)
			c.send(server, kafka)
			letter := box.wantLetter(t)
			server.commit(0x2000, 0x2030)
			server.keepalive(0x2100)
			for len(kafka.arrived) > 0 {
				<-kafka.arrived
			}
			server.begin(0x3000)
			server.order(0x2f00, "behind")
			server.commit(0x3000, 0x3030)
			kafka.wantBatch(t, "behind")
			kafka.acknowledge()
			waitFor(t, func() bool { return s.r.publisher.Snapshot().Rows == 0 })
			unmoved(t, s)
			server.marked(0x4000, letter)
			server.waitFlushed(t, 0x4030)
			if !c.check(letter) {
				t.Errorf("the letter is %+v", letter)
			}
			want := position.Position{Commit: 0x2000, LSN: 0x1f00, Kind: position.Row}
			if letter.Position != want || letter.Slot != "s" || letter.SystemID != "1" || letter.Table != "public.outbox" ||
				letter.Error == "" || letter.FirstFailed.IsZero() || letter.LastFailed.IsZero() || letter.CommitTime.IsZero() || letter.Ordinal == 0 {
				t.Errorf("the letter is %+v", letter)
			}
			if text := log.String(); strings.Count(text, "dead letter") != 1 || !strings.Contains(text, "reason="+string(letter.Reason)) {
				t.Errorf("the log says %s", text)
			}
		})
	}
}

// The marker may come by before the relay has been told that the letter is written.
func TestMarkerBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for name, lane := range map[string]bool{"of a lane": true, "of none": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, box, kafka, server := kept(t, io.Discard)
			box.proceed = make(chan struct{})
			running(t, s)
			server.begin(0x2000)
			if lane {
				server.order(0x1f00, "bad")
				kafka.refuse()
			} else {
				server.nulls(0x1f00)
			}
			letter := box.wantLetter(t)
			server.commit(0x2000, 0x2030)
			server.marked(0x3000, letter)
			if lane {
				waitFor(t, func() bool { return s.stream.ReceivedLSN() >= 0x3030 && !s.inTransaction() })
			}
			unmoved(t, s)
			box.proceed <- struct{}{}
			server.waitFlushed(t, 0x3030)
		})
	}
}

// While it is open whether a letter was written its row is neither sent nor given up,
// and the marker stays the same: it may be in the log.
func TestUnclearLetter(t *testing.T) {
	t.Parallel()
	lost := &catalog.CheckError{Problem: "gone", Class: catalog.Unreachable}
	for name, written := range map[string]bool{"written": true, "not written": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, box, kafka, server := kept(t, io.Discard)
			box.fails, box.lies = []error{lost, &catalog.CheckError{Problem: "denied", Class: catalog.Privilege}}, written
			running(t, s)
			server.begin(0x2000)
			server.order(0x1f00, "bad")
			server.commit(0x2000, 0x2030)
			kafka.wantBatch(t, "bad")
			kafka.refuse()
			first := box.wantLetter(t)
			waitFor(t, func() bool { return strings.Contains(strings.Join(s.r.Status().Problems, "\n"), "dead letters: ") })
			for range 2 { // What is definite later does not say what became of the first attempt.
				if next := box.wantLetter(t); next.Marker != first.Marker {
					t.Errorf("another marker")
				}
			}
			unmoved(t, s)
			server.marked(0x3000, first)
			server.waitFlushed(t, 0x3030)
			if len(kafka.arrived) > 0 || len(box.letters) != 1 {
				t.Errorf("sent %d more batches, %d letters", len(kafka.arrived), len(box.letters))
			}
			waitFor(t, func() bool { return s.r.Status().Ready() })
		})
	}
}

// A store that cannot be written halts, keeps the position, and is tried again with
// the row: it may have become publishable meanwhile.
func TestStoreFailureHalts(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r, box := newKeepingRelay(t, kafka, io.Discard)
	haltBriefly(r)
	box.fails = []error{&catalog.CheckError{Problem: "no space left", Class: catalog.Unexpected}}
	s, server := begun(t, r)
	running(t, s)
	server.relation("outbox", outboxColumns...)
	server.begin(0x2000)
	server.nulls(0x1f00)
	server.order(0x1f10, "behind")
	server.commit(0x2000, 0x2030)
	box.wantLetter(t)
	waitFor(t, func() bool { return strings.Contains(strings.Join(r.Status().Problems, "\n"), "no space left") })
	unmoved(t, s)
	if len(kafka.arrived) > 0 {
		t.Errorf("what is behind was sent: %q", <-kafka.arrived)
	}
	letter := box.wantLetter(t)
	kafka.wantBatch(t, "behind")
	kafka.acknowledge()
	server.marked(0x3000, letter)
	server.waitFlushed(t, 0x3030)
	waitFor(t, func() bool { return r.Status().Ready() })
}

// Too many dead letters halt, and say so.
func TestTrippedBreakerHalts(t *testing.T) {
	t.Parallel()
	s, box, kafka, server := kept(t, io.Discard)
	s.r.breaker.share = 0.2
	running(t, s)
	server.begin(0x2000)
	for i := range 100 {
		server.nulls(pglogrepl.LSN(0x1f00 + i))
	}
	for range 19 {
		box.wantLetter(t)
	}
	waitFor(t, func() bool { return strings.Contains(strings.Join(s.r.Status().Problems, "\n"), "breaker.share") })
	if len(box.arrived) > 0 || len(kafka.arrived) > 0 {
		t.Errorf("%d more letters", len(box.arrived))
	}
	unmoved(t, s)
}

// A row that is a dead letter already is met again: it is not sent, whatever became of
// its letter, nor is it one twice; and it holds the position until its marker comes.
func TestKnownDeadLetters(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(*walsender){
		"with a lane":       func(w *walsender) { w.order(0x1f00, "dead") },
		"with no topic":     func(w *walsender) { w.nameless(0x1f00, "dead") },
		"that maps to none": func(w *walsender) { w.nulls(0x1f00) },
		"of another table":  func(w *walsender) { w.relation("outbox_old", outboxColumns...); w.order(0x1f00, "dead") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kafka := newBrokers()
			r, box := newKeepingRelay(t, kafka, io.Discard)
			letter := &deadletter.Letter{
				Position: position.Position{Commit: 0x2000, LSN: 0x1f00, Kind: position.Row},
				State:    deadletter.Discarded, Marker: deadletter.NewMarker(),
			}
			box.write(letter)
			s, server := begun(t, r)
			running(t, s)
			server.relation("outbox", outboxColumns...)
			server.begin(0x2000)
			send(server)
			server.relation("outbox", outboxColumns...)
			server.order(0x1f10, "behind")
			server.commit(0x2000, 0x2030)
			kafka.wantBatch(t, "behind")
			kafka.acknowledge()
			waitFor(t, func() bool { return r.publisher.Snapshot().Rows == 0 })
			unmoved(t, s)
			server.marked(0x3000, letter)
			server.waitFlushed(t, 0x3030)
			if len(box.arrived) > 0 || len(kafka.arrived) > 0 {
				t.Errorf("%d letters, %d batches", len(box.arrived), len(kafka.arrived))
			}
		})
	}
}

// A refusal that comes out of a past session is of no row of this one.
func TestRefusalOfAPastSession(t *testing.T) {
	t.Parallel()
	s, box, _, _ := kept(t, io.Discard)
	past, end := context.WithCancel(t.Context())
	end()
	f := publish.Refusal{Record: publish.Record{Seq: 1}, Err: errors.New("refused")}
	if err := s.r.Refused(past, &f); !errors.Is(err, publish.ErrSessionOver) || len(box.arrived) > 0 {
		t.Errorf("%v, %d letters", err, len(box.arrived))
	}
	s.r.publisher.End()
	s.letters.close()
	if err := s.r.Refused(t.Context(), &f); !errors.Is(err, publish.ErrSessionOver) || len(box.arrived) > 0 {
		t.Errorf("%v, %d letters", err, len(box.arrived))
	}
}

// A letter that is there already under another marker was not written by this session,
// whose stream may have brought that marker: the next one finds it from the start.
func TestStrangeLetterEndsTheSession(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r, box := newKeepingRelay(t, kafka, io.Discard)
	server := newFakeServer(t, r)
	ran(t, r)
	w := server.streams(t)
	waitFor(t, func() bool { return r.letters.Load() != nil })
	box.set(func() {
		box.write(&deadletter.Letter{Position: position.Position{Commit: 0x2000, LSN: 0x1f00, Kind: position.Row}, Marker: deadletter.NewMarker()})
	})
	w.relation("outbox", outboxColumns...)
	w.begin(0x2000)
	w.nulls(0x1f00)
	box.wantLetter(t)
	w = server.streams(t)
	w.relation("outbox", outboxColumns...)
	w.begin(0x2000)
	w.nulls(0x1f00)
	w.commit(0x2000, 0x2030)
	w.marked(0x3000, box.byID[1])
	w.waitFlushed(t, 0x3030)
}

// The lanes are asked before the letters: the other way round a row that becomes a
// dead letter in between is with neither.
func TestLanesAreAskedBeforeTheLetters(t *testing.T) {
	t.Parallel()
	moved := false // from its lane to the letters, between the two questions
	lanes := func() (uint64, bool) {
		defer func() { moved = true }()
		return 7, !moved
	}
	letters := func() (uint64, bool) {
		defer func() { moved = true }()
		return 7, moved
	}
	if seq, any := lowest(lanes, letters); seq != 7 || !any {
		t.Errorf("row 7 is with neither (%d, %v)", seq, any)
	}
	none := func() (uint64, bool) { return 0, false }
	at := func(seq uint64) func() (uint64, bool) { return func() (uint64, bool) { return seq, true } }
	for want, asked := range map[uint64][2]func() (uint64, bool){
		0: {none, none}, 1: {at(1), none}, 2: {none, at(2)}, 3: {at(3), at(9)}, 4: {at(9), at(4)},
	} {
		if got, any := lowest(asked[0], asked[1]); got != want || any != (want != 0) {
			t.Errorf("got %d (%v), want %d", got, any, want)
		}
	}
}

// A stop waits for the markers of the letters that were written last, but not for ever.
func TestStopWaitsForMarkers(t *testing.T) {
	t.Parallel()
	for name, comes := range map[string]bool{"that come": true, "that do not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, box, kafka, server := kept(t, io.Discard)
			stop := running(t, s)
			server.begin(0x2000)
			server.order(0x1f00, "bad")
			server.commit(0x2000, 0x2030)
			kafka.wantBatch(t, "bad")
			waitFor(t, func() bool { return !s.inTransaction() })
			ended := make(chan struct{})
			began := time.Now()
			go func() { defer close(ended); _ = stop() }()
			<-s.quit
			kafka.refuse() // the letter is written during the stop
			letter := box.wantLetter(t)
			server.begin(0x3000)
			server.order(0x2f00, "never")
			server.commit(0x3000, 0x3030)
			want := slotAt
			if comes {
				server.marked(0x4000, letter)
				want = 0x2030
			}
			<-ended
			if at, _ := server.flushed(); at != want {
				t.Errorf("the server was told %s, want %s", at, want)
			}
			if len(kafka.arrived) > 0 {
				t.Errorf("sent %q", <-kafka.arrived)
			}
			if took := time.Since(began); took > s.r.cfg.ShutdownTimeout+time.Second {
				t.Errorf("took %v", took)
			}
			if left := s.r.left; left != map[bool]int{true: 0, false: 1}[comes] {
				t.Errorf("%d left", left)
			}
		})
	}
}

// A single run reaches its target although the marker of a dead letter lies behind it.
func TestSingleRunReadsOnToTheMarker(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r, box := newKeepingRelay(t, kafka, io.Discard)
	r.cfg.Once = true
	server := newFakeServer(t, r)
	server.walEnd = 0x2030
	ended := make(chan error, 1)
	go func() { ended <- r.sessions(t.Context()) }()
	w := server.streams(t)
	w.relation("outbox", outboxColumns...)
	w.begin(0x2000)
	w.nulls(0x1f00)
	w.commit(0x2000, 0x2030)
	w.marked(0x3000, box.wantLetter(t))
	if err := <-ended; !errors.Is(err, errDrained) {
		t.Errorf("ends with %v", err)
	}
}
