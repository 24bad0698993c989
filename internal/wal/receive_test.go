package wal

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
)

// kinds reads n messages and returns their kinds.
func kinds(t *testing.T, st *Stream, n int) []Kind {
	t.Helper()
	var got []Kind
	for range n {
		m, err := st.Next()
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		got = append(got, m.Kind)
	}
	return got
}

func TestNextInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		s.answer(silence, nil)
		st := s.start()
		s.copy(
			begin(0x2000, 7),
			relation(16384, "public", "outbox", outboxColumns...),
			insert(0x1f00, 16384, text("a"), null),
			keepaliveData(0x1e00, true), // the server may ask in the middle of a transaction
			insert(0x1f00, 16384, text("b"), null),
			logical(0x1f80, true, "p", "c"),
			commit(0x2000, 0x2030),
			logical(0x2100, false, "p", "c"),
			keepaliveData(0x2200, false),
		)
		s.send(&pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"}) // after a reload
		s.copy(begin(0x3000, 8))
		want := []Kind{
			KindBegin, KindRelation, KindInsert, KindKeepalive, KindInsert, KindLogical, KindCommit,
			KindLogical, KindKeepalive, KindBegin,
		}
		if diff := cmp.Diff(want[:4], kinds(t, st, 4)); diff != "" {
			t.Error(diff)
		}
		if got := st.ReceivedLSN(); got != 0x1e00 {
			t.Errorf("received inside a transaction: got %s, want the keepalive's 0/1E00", got)
		}
		if diff := cmp.Diff(want[4:], kinds(t, st, 6)); diff != "" {
			t.Error(diff)
		}
		if got := st.ReceivedLSN(); got != 0x2200 {
			t.Errorf("received: got %s, want 0/2200", got)
		}
		if n := s.count(); n != 2 {
			t.Errorf("%d status updates, want the first and the answer", n)
		}
	})
}

// A row's slices are good until the next call, and large rows arrive whole.
func TestNextLargeRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		s.answer(silence, nil)
		st := s.start()
		large := strings.Repeat("0123456789", 100_000)
		s.copy(begin(0x2000, 7), relation(16384, "public", "outbox", outboxColumns...),
			insert(0x1f00, 16384, text("a"), text(large)), insert(0x1f00, 16384, text("b"), text("small")))
		kinds(t, st, 2)
		for _, want := range []string{large, "small"} {
			m, err := st.Next()
			if err != nil {
				t.Fatal(err)
			}
			if string(m.Values[1].Data) != want {
				t.Errorf("got %d bytes, want %d", len(m.Values[1].Data), len(want))
			}
		}
	})
}

func serverSays(severity, code, routine, message string) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{
		Severity: "FEHLER", SeverityUnlocalized: severity, Code: code, Routine: routine, Message: message,
	}
}

func TestNextErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		last  pgproto3.BackendMessage
		check func(t *testing.T, err error)
	}{
		{"terminated", serverSays("FATAL", "57P01", "ProcessInterrupts", "terminating connection"), func(t *testing.T, err error) {
			var se *ServerError
			if !errors.As(err, &se) || !se.ShuttingDown() || se.Severity != "FATAL" {
				t.Errorf("got %#v", err)
			}
		}},
		{"publication missing before 18", serverSays("ERROR", "42704", "get_publication_oid", "publication does not exist"), func(t *testing.T, err error) {
			var se *ServerError
			if !errors.As(err, &se) || !se.PublicationMissing() || se.SlotMissing() {
				t.Errorf("got %#v", err)
			}
		}},
		{"standby gone at a fast shutdown", serverSays("ERROR", "55000", "StandbySlotsHaveCaughtup", "replication slot"), func(t *testing.T, err error) {
			var se *ServerError
			if !errors.As(err, &se) || !se.ShuttingDown() || se.SlotState() || se.PublicationMissing() {
				t.Errorf("got %#v", err)
			}
		}},
		{"shut down", &pgproto3.CommandComplete{CommandTag: []byte("COPY 0")}, func(t *testing.T, err error) {
			if !errors.Is(err, ErrEnded) {
				t.Errorf("got %v", err)
			}
		}},
		{"copy ended", &pgproto3.CopyDone{}, func(t *testing.T, err error) {
			if !errors.Is(err, ErrEnded) {
				t.Errorf("got %v", err)
			}
		}},
		{"connection lost", nil, func(t *testing.T, err error) {
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("got %v", err)
			}
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScripted(t)
				st := s.start()
				s.copy(begin(0x2000, 7))
				if tc.last != nil {
					s.send(tc.last)
				}
				s.sendThenClose()
				err := <-readAll(st)
				tc.check(t, err)
				if _, again := st.Next(); again != err { //nolint:errorlint // identity is meant
					t.Errorf("the next call returned another error: %v", again)
				}
				if st.Alive() {
					t.Error("alive after the end")
				}
				if again := st.Barrier(t.Context()); again != err { //nolint:errorlint // identity is meant
					t.Errorf("Barrier: got %v", again)
				}
			})
		})
	}
}

// What cannot be used ends the reading and not the stream: the server has the same
// for whoever comes next, so nothing is won by giving the slot away.
func TestUnusableKeepsTheSlot(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]pgproto3.BackendMessage{
		"truncated frame":      &pgproto3.CopyData{Data: insert(1, 16384, null, null)[:30]},
		"empty frame":          &pgproto3.CopyData{},
		"message out of place": &pgproto3.DataRow{},
		"skipped publication":  (*pgproto3.NoticeResponse)(serverSays("WARNING", "55000", "LoadPublications", "skipped loading publication")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScripted(t)
				st := s.start()
				s.copy(begin(0x2000, 7), commit(0x2000, 0x2030))
				s.send(last)
				s.copy(keepaliveData(0x3000, false))
				var err error
				select {
				case err = <-readAll(st):
				case <-time.After(DefaultWALSenderTimeout):
					t.Fatal("reads on")
				}
				_, protocol := errors.AsType[*ProtocolError](err)
				if _, server := errors.AsType[*ServerError](err); protocol == server {
					t.Errorf("got %v", err)
				}
				if _, again := st.Next(); again != err { //nolint:errorlint // identity is meant
					t.Errorf("the next call returned another error: %v", again)
				}
				before := s.count()
				for range 60 {
					time.Sleep(DefaultWALSenderTimeout / 20)
					if !st.Alive() {
						t.Fatal("not alive any more")
					}
				}
				if n := s.count() - before; n < 30 || s.last().flush != slotPosition {
					t.Errorf("%d status updates, the last says %s", n, s.last().flush)
				}
				select {
				case <-st.Done():
					t.Error("the stream has ended")
				default:
				}
				_ = st.Close()
				<-st.Done()
			})
		})
	}
}

// From 18 on a missing publication is a warning, with rows left out after it.
func TestPublicationNotice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.copy(begin(0x2000, 7), commit(0x2000, 0x2030))
		s.send((*pgproto3.NoticeResponse)(serverSays("WARNING", "55000", "LoadPublications", "skipped loading publication: cdc_relay")))
		s.copy(keepaliveData(0x3000, false))
		err := <-readAll(st)
		var se *ServerError
		if !errors.As(err, &se) || !se.PublicationMissing() || se.Severity != "WARNING" {
			t.Fatalf("got %#v", err)
		}
		if err := st.Confirm(0x2030); err == nil {
			t.Error("a position was confirmed after rows had been left out")
		}
		if got := s.last().flush; got != slotPosition {
			t.Errorf("status after the notice: %s", got)
		}
	})
}

// Held back by a standby is a state, told once, that the next position ends.
func TestHeldBackNotice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		s.answer(silence, nil)
		st := s.start()
		held := (*pgproto3.NoticeResponse)(serverSays("WARNING", "55000", "StandbySlotsHaveCaughtup", "replication slot \"standby\" is inactive"))
		s.send(held, held, held)
		s.copy(keepaliveData(slotPosition, false)) // the answer to a ping, no progress
		s.send(held)
		s.copy(keepaliveData(slotPosition+8, false))
		if diff := cmp.Diff([]Kind{KindNotice, KindKeepalive}, kinds(t, st, 2)); diff != "" {
			t.Error(diff)
		}
		if h := st.HeldBack(); h == nil || h.ShuttingDown() || h.SlotState() || h.Message != "replication slot \"standby\" is inactive" {
			t.Errorf("held back: got %v", h)
		}
		kinds(t, st, 1)
		if h := st.HeldBack(); h != nil {
			t.Errorf("after progress: got %v", h)
		}
		if err := st.Confirm(slotPosition + 8); err != nil {
			t.Error(err)
		}
		s.send(held)
		m, err := st.Next()
		if err != nil || m.Kind != KindNotice || m.Notice.Routine != "StandbySlotsHaveCaughtup" {
			t.Errorf("held back again: got %v, %v", m, err)
		}
	})
}

func TestOtherNotice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		s.answer(silence, nil)
		st := s.start()
		s.send((*pgproto3.NoticeResponse)(serverSays("WARNING", "57P01", "quickdie", "terminating connection due to immediate shutdown command")))
		m, err := st.Next()
		if err != nil || m.Kind != KindNotice || !m.Notice.ShuttingDown() {
			t.Errorf("got %v, %v", m, err)
		}
		if st.HeldBack() != nil {
			t.Error("held back")
		}
	})
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.receive(st, 0x2000)
		done := readAll(st)
		synctest.Wait() // the reader waits
		st.Interrupt()
		if err := <-done; !errors.Is(err, ErrInterrupted) {
			t.Fatalf("got %v", err)
		}
		if _, err := st.Next(); !errors.Is(err, ErrInterrupted) {
			t.Errorf("the next call: got %v", err)
		}

		// The stream lives on while the last rows settle.
		before := s.count()
		time.Sleep(30 * time.Second)
		if n := len(s.since(before)); n < 30 || !st.Alive() {
			t.Errorf("%d updates in 30 s, alive %v", n, st.Alive())
		}
		if err := st.Confirm(0x2000); err != nil {
			t.Error(err)
		}
		if err := st.Barrier(t.Context()); err != nil {
			t.Errorf("Barrier: %v", err)
		}
		if err := st.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// The last confirmed position reaches the server before the copy ends, whatever
// the server is in the middle of sending.
func TestBarrier(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.receive(st, 0x2000)
		if err := st.Confirm(0x2000); err != nil {
			t.Fatal(err)
		}
		s.copy(begin(0x9000, 9), relation(16384, "public", "outbox", outboxColumns...))
		for range 1000 {
			s.copy(insert(0x8000, 16384, text("a"), null), keepaliveData(0x7000, true))
		}
		if err := st.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := s.count()
		if got := s.last(); got.flush != 0x2000 || got.at > s.copyDone {
			t.Errorf("last update %+v, CopyDone at %v", got, s.copyDone)
		}
		// Nothing is sent after CopyDone but the farewell.
		time.Sleep(time.Minute)
		if n := s.count(); n != before || s.left {
			t.Errorf("%d updates after CopyDone, left %v", n-before, s.left)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !s.left {
			t.Error("no farewell")
		}
	})
}

func TestBarrierFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.answer(nil, func() {}) // it goes on as if nothing had been asked
		began := time.Now()
		err := st.Barrier(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != barrierTimeout {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.answer(nil, func() {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := st.Barrier(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.answer(nil, func() { s.send(serverSays("FATAL", "57P01", "ProcessInterrupts", "terminating connection")) })
		var se *ServerError
		if err := st.Barrier(t.Context()); !errors.As(err, &se) || !se.ShuttingDown() {
			t.Errorf("got %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.answer(nil, func() { s.send(&pgproto3.CommandComplete{CommandTag: []byte("COPY 0")}) })
		if err := st.Barrier(t.Context()); !errors.Is(err, ErrEnded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		done := readAll(st)
		synctest.Wait()
		for range 3 {
			if err := st.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("Next: got %v", err)
		}
		if err := st.Barrier(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Barrier: got %v", err)
		}
		synctest.Wait()
		if !s.left || st.Alive() {
			t.Errorf("left %v, alive %v", s.left, st.Alive())
		}
	})
}

// Close does not wait for a peer that takes nothing.
func TestCloseOfAStuckConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.receive(st, 0x2000)
		held := make(chan struct{})
		s.answer(func(status) { <-held }, nil)
		time.Sleep(5 * time.Second) // a status update is under way
		began := time.Now()
		if err := st.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(began); took > 2*closeTimeout {
			t.Errorf("Close took %v", took)
		}
		close(held)
	})
}

// An Interrupt that comes late does not cut the Barrier short.
func TestInterruptDuringBarrier(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.answer(nil, func() {
			time.Sleep(time.Second)
			st.Interrupt()
			s.send(&pgproto3.CopyDone{})
		})
		go st.Interrupt()
		if err := st.Barrier(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
