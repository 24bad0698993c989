package wal

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
)

// readAll reads until the stream ends and returns the reason.
func readAll(st *Stream) <-chan error {
	done := make(chan error, 1)
	go func() {
		for {
			if _, err := st.Next(); err != nil {
				done <- err
				return
			}
		}
	}()
	return done
}

// receive makes lsn a position that may be confirmed.
func (s *scripted) receive(st *Stream, lsn pglogrepl.LSN) {
	s.t.Helper()
	s.keepalive(lsn, false)
	for st.ReceivedLSN() < lsn {
		if _, err := st.Next(); err != nil {
			s.t.Fatal(err)
		}
	}
}

func TestStatusStartsAtTheSlotsPosition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		if got := s.since(0); len(got) != 1 || got[0] != (status{0, slotPosition, slotPosition, slotPosition, true}) {
			t.Errorf("first status: got %+v", got)
		}
		if st.Confirmed() != slotPosition || st.ReceivedLSN() != slotPosition {
			t.Errorf("got confirmed %s, received %s", st.Confirmed(), st.ReceivedLSN())
		}
	})
}

// Idle, a status that asks for a reply goes out every second, or more often if
// wal_sender_timeout is short.
func TestStatusWhenIdle(t *testing.T) {
	t.Parallel()
	for timeout, beat := range map[time.Duration]time.Duration{
		time.Second:      time.Second / 12,
		3 * time.Second:  time.Second / 4,
		10 * time.Second: 10 * time.Second / 12,
		time.Minute:      time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newScripted(t)
			c := s.config()
			c.WALSenderTimeout = timeout
			conn, err := Connect(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			st, err := conn.Start(t.Context(), StartOptions{Confirmed: at(slotPosition), ServerVersion: 140018})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			readAll(st)
			for range 300 {
				time.Sleep(timeout / 20)
				if !st.Alive() {
					t.Fatalf("not alive at %v", time.Since(s.started))
				}
			}
			last := time.Duration(0)
			for _, u := range s.since(0) {
				if u.at-last > beat || !u.ask || u.flush != slotPosition {
					t.Errorf("timeout %v: status %+v after %v", timeout, u, u.at-last)
				}
				last = u.at
			}
			if n, want := s.count(), int(15*timeout/beat)+1; n < want-1 || n > want+1 {
				t.Errorf("timeout %v: %d status updates in 15 timeouts, want %d", timeout, n, want)
			}
		})
	}
}

func TestStatusWhenConfirmedMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.receive(st, 0x9000)
		time.Sleep(500 * time.Millisecond) // between two beats

		// The first move goes out at once, those within statusGap together.
		before := s.count()
		if err := st.Confirm(0x2000); err != nil {
			t.Fatal(err)
		}
		if got := s.since(before); len(got) != 1 || got[0].write != 0x2000 || got[0].flush != 0x2000 || got[0].apply != 0x2000 {
			t.Fatalf("after the first move: got %+v", got)
		}
		for lsn := pglogrepl.LSN(0x2001); lsn <= 0x2100; lsn++ {
			if err := st.Confirm(lsn); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(statusGap)
		if got := s.since(before); len(got) != 2 || got[1].flush != 0x2100 {
			t.Fatalf("after %v: got %+v", statusGap, got)
		}
		time.Sleep(100 * time.Millisecond)
		if got := s.since(before); len(got) != 2 {
			t.Errorf("nothing moved: got %+v", got[2:])
		}

		// A steady flow costs one update per statusGap.
		before = s.count()
		for i := range 1000 {
			if err := st.Confirm(0x3000 + pglogrepl.LSN(i)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(statusGap)
		if n := len(s.since(before)); n < 90 || n > 110 {
			t.Errorf("a second of moves: got %d updates, want about 100", n)
		}
		if got := s.last().flush; got != 0x3000+999 {
			t.Errorf("last update: got %s", got)
		}
	})
}

func TestStatusOnRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		readAll(st)
		time.Sleep(100 * time.Millisecond)
		before := s.count()
		s.keepalive(0x2000, true)
		if got := s.since(before); len(got) != 1 || got[0].ask || got[0].flush != slotPosition {
			t.Errorf("got %+v, want one update with the confirmed position", got)
		}
	})
}

// A reader that is held for minutes costs neither connection nor liveness.
func TestStatusWhileBlocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.receive(st, 0x9000)
		st.Blocked(true)
		before := s.count()
		last := time.Since(s.started)
		for range 300 {
			time.Sleep(time.Second)
			if !st.Alive() {
				t.Fatalf("not alive at %v", time.Since(s.started))
			}
		}
		for _, u := range s.since(before) {
			if u.at-last > time.Second || u.ask {
				t.Errorf("status %+v after %v", u, u.at-last)
			}
			last = u.at
		}
		// What settles meanwhile is still reported.
		if err := st.Confirm(0x8000); err != nil {
			t.Fatal(err)
		}
		time.Sleep(statusGap)
		if got := s.last().flush; got != 0x8000 {
			t.Errorf("confirmed while blocked: got %s", got)
		}

		// Unblocked with nothing to read it stays alive, since pings go out again.
		st.Blocked(false)
		done := readAll(st)
		for range 60 {
			time.Sleep(time.Second)
			if !st.Alive() {
				t.Fatalf("not alive at %v", time.Since(s.started))
			}
		}
		select {
		case err := <-done:
			t.Errorf("the stream ended: %v", err)
		default:
		}
	})
}

// A server that falls silent is known dead after two thirds of
// wal_sender_timeout and left after the whole of it.
func TestSilentServerIsLeft(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := newScripted(t)
			st := s.start()
			done := readAll(st)
			time.Sleep(after)
			synctest.Wait()
			s.answer(silence, nil) // it still takes bytes, as a kernel does
			silent := time.Now()
			var err error
			for !errors.Is(err, errTest) {
				select {
				case err = <-done:
					if !strings.Contains(err.Error(), "no answer from the server within wal_sender_timeout (10s)") {
						t.Errorf("got %v", err)
					}
					err = errTest
				case <-time.After(100 * time.Millisecond):
					if got, want := st.Alive(), time.Since(silent) < DefaultWALSenderTimeout*2/3; got && !want {
						t.Fatalf("still alive %v after the last byte", time.Since(silent))
					}
				}
			}
			if took := time.Since(silent); took < DefaultWALSenderTimeout || took > DefaultWALSenderTimeout+time.Second {
				t.Errorf("silent after %v: left after %v", after, took)
			}
			if st.Alive() {
				t.Error("alive after the end")
			}
			if err := st.Close(); err == nil || !strings.Contains(err.Error(), "no answer") {
				t.Errorf("Close: got %v, want the reason", err)
			}
		})
	}
}

var errTest = errors.New("over")

// A peer that takes no bytes any more ends the stream too, though the reader is
// blocked and sees nothing.
func TestStuckWriteEndsTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.receive(st, 0x2000)
		st.Blocked(true)
		time.Sleep(time.Minute)
		held := make(chan struct{})
		s.answer(func(status) { <-held }, nil)
		stuck := time.Now()
		for st.Alive() {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(stuck); took > 8*time.Second {
			t.Errorf("alive for %v", took)
		}
		time.Sleep(8 * time.Second)
		_, err := st.Next()
		if err == nil || !strings.Contains(err.Error(), "send standby status") {
			t.Errorf("got %v", err)
		}
		close(held)
	})
}

func TestConfirmRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.receive(st, 0x5000)
		if err := st.Confirm(0x4000); err != nil {
			t.Fatal(err)
		}
		for lsn, want := range map[pglogrepl.LSN]string{0: "zero", 0x3fff: "confirmed already", 0x5001: "only 0/5000 was received"} {
			if err := st.Confirm(lsn); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Confirm(%s): got %v, want %q", lsn, err, want)
			}
		}
		if err := st.Confirm(0x4000); err != nil {
			t.Errorf("the same again: %v", err)
		}
		time.Sleep(time.Minute)
		last := slotPosition
		for _, u := range s.since(0) {
			if u.flush < last || u.flush > 0x4000 || u.write != u.flush || u.apply != u.flush {
				t.Errorf("got %+v after %s", u, last)
			}
			last = u.flush
		}
	})
}

func TestConfirmFromManyGoroutines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start()
		s.receive(st, 0x9000)
		var wg sync.WaitGroup
		for g := range pglogrepl.LSN(8) {
			wg.Go(func() {
				for i := range pglogrepl.LSN(500) {
					_ = st.Confirm(0x2000 + i*8 + g) // one that was overtaken is refused
					st.Blocked(i%2 == 0)
					st.Alive()
				}
			})
		}
		wg.Wait()
		time.Sleep(statusGap)
		if want := pglogrepl.LSN(0x2000 + 499*8 + 7); st.Confirmed() != want || s.last().flush != want {
			t.Errorf("got %s, sent %s, want %s", st.Confirmed(), s.last().flush, want)
		}
		last := slotPosition
		for _, u := range s.since(0) {
			if u.flush < last {
				t.Fatalf("status went back from %s to %s", last, u.flush)
			}
			last = u.flush
		}
	})
}
