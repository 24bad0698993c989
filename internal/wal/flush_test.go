package wal

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
)

// The flush position of a status update is what lets the server forget. On every way
// to one it is what was confirmed, never what was received, and never zero, which the
// client library would replace by the write position.
func TestFlushIsWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		st := s.start() // one at the start
		s.receive(st, 0x5000)
		checked := 0
		check := func(when string, want pglogrepl.LSN) {
			t.Helper()
			sent := s.since(checked)
			checked += len(sent)
			if len(sent) == 0 {
				t.Errorf("%s: no status update", when)
			}
			for _, u := range sent {
				if u.flush != want {
					t.Errorf("%s: flush position %s, want %s", when, u.flush, want)
				}
				if u.write != want || u.apply != want {
					t.Errorf("%s: write and apply position %s and %s, want %s", when, u.write, u.apply, want)
				}
			}
		}
		done := readAll(st)
		time.Sleep(DefaultWALSenderTimeout)
		check("from the start on, with everything received and nothing confirmed", slotPosition)
		s.keepalive(0x5000, true)
		check("when the server asks", slotPosition)
		st.Blocked(true)
		time.Sleep(DefaultWALSenderTimeout)
		check("while the reader is held", slotPosition)
		st.Blocked(false)
		if err := st.Confirm(0x3000); err != nil {
			t.Fatal(err)
		}
		time.Sleep(statusGap)
		check("when a part is confirmed", 0x3000)
		st.Interrupt()
		if err := <-done; !errors.Is(err, ErrInterrupted) {
			t.Errorf("the reader stopped with %v", err)
		}
		time.Sleep(DefaultWALSenderTimeout)
		check("after the reader has stopped", 0x3000)
		if err := st.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		check("with the end of the copy", 0x3000)
	})
}
