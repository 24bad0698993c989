package checkpoint_test

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"
)

// judge holds a position against the rules, by the account of every row.
func (w *world) judge(got pglogrepl.LSN) error {
	if got < w.confirmed {
		return fmt.Errorf("goes back from %d", w.confirmed)
	}
	if err := w.loses(got); err != nil {
		return err
	}
	if got > w.confirmed {
		if err := w.source(got); err != nil {
			return err
		}
	}
	if due := w.due(); got < due {
		return fmt.Errorf("lags behind %d", due)
	}
	return nil
}

// loses looks for a row that a server restarted at the position would never send
// again although it is not settled.
func (w *world) loses(got pglogrepl.LSN) error {
	for i, t := range w.log[w.first:] {
		if t.commit >= got {
			return nil
		}
		if w.first+i >= w.next {
			return fmt.Errorf("is past the commit at %d, which has not come", t.commit)
		}
		if !t.settled() {
			return fmt.Errorf("is past the commit at %d, which has unsettled rows", t.commit)
		}
	}
	return nil
}

// source finds what entitles to the position: the end of a transaction (loses has
// looked at its rows), or a keepalive's end with nothing queued, in flight or open.
func (w *world) source(got pglogrepl.LSN) error {
	for _, t := range w.log[w.first:w.next] {
		if t.end == got {
			return nil
		}
	}
	if !slices.Contains(w.keepalives, got) {
		return errors.New("is neither the end of a transaction nor of a keepalive")
	}
	if !w.idle() {
		return errors.New("is a keepalive's end while something is queued, in flight or open")
	}
	return nil
}

// due is the position that must have been reached by now.
func (w *world) due() pglogrepl.LSN {
	due := w.start
	for _, t := range w.log[w.first:w.next] {
		if !t.settled() {
			return due
		}
		due = t.end
	}
	if w.idle() {
		for _, k := range w.keepalives {
			due = max(due, k)
		}
	}
	return due
}

// idle: no transaction is open and every row that came is settled.
func (w *world) idle() bool {
	return !w.open && !slices.ContainsFunc(w.log[w.first:w.next], func(t *txn) bool { return !t.settled() })
}

// unconfirmed counts the transactions with rows that came and are not confirmed.
func (w *world) unconfirmed() int {
	n := 0
	for _, t := range w.log[w.first:w.next] {
		if t.end > w.confirmed && len(t.rows) > 0 {
			n++
		}
	}
	return n
}

func (t *txn) settled() bool {
	return !slices.ContainsFunc(t.rows, func(r *row) bool { return !r.settled })
}
