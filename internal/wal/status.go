package wal

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// statusGap is the least time between two status updates that only report
	// progress. The server handles each in its sending loop, so under load one per
	// transaction would cost it and us a system call each; a hundred a second cost
	// a fraction of a percent, and at most this much settled work is sent again
	// after a crash.
	statusGap = 10 * time.Millisecond
	// heldBeat is the most time between two status updates while the reader is
	// held.
	heldBeat = time.Second
	// closeTimeout bounds the farewell.
	closeTimeout = time.Second
	// unansweredPings is how many requests for a reply, sent a third of
	// wal_sender_timeout apart, may go unanswered when the next is due.
	unansweredPings = 3
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// pace is the timing that follows from wal_sender_timeout.
type pace struct {
	timeout time.Duration
	beat    time.Duration // of the writer, at most heldBeat
	beats   int           // from ping to ping: a third of the timeout
	proof   time.Duration // how long a sign of life is proof: two thirds
}

func paceOf(timeout time.Duration) pace {
	third := timeout / 3
	beats := int((third + heldBeat - 1) / heldBeat)
	return pace{timeout: timeout, beat: third / time.Duration(beats), beats: beats, proof: timeout * 2 / 3}
}

// pinger decides at each beat what to send.
type pinger struct {
	pace       pace
	beats      int   // since the last ping
	unanswered int   // pings without a byte after them
	seen       int64 // when the last byte before the last ping had come
}

// beat returns whether a status update is due, whether it asks for a reply, and
// whether the server has been silent for too long. read is when the last byte
// came.
func (p *pinger) beat(held bool, read int64) (send, ask, silent bool) {
	if held {
		p.beats, p.unanswered = 0, 0
		return true, false, false
	}
	if p.beats++; p.beats < p.pace.beats {
		return false, false, false
	}
	if read != p.seen {
		p.seen, p.unanswered = read, 0
	}
	if p.unanswered >= unansweredPings {
		return false, false, true
	}
	p.beats = 0
	p.unanswered++
	return true, true, false
}

// write is the writer goroutine. It owns everything that is sent after
// START_REPLICATION, and closes the connection as it leaves.
func (s *Stream) write() {
	defer close(s.stopped)
	if err := s.keepStatus(); err != nil {
		s.end(err)
	}
	if s.reason() == ErrClosed { //nolint:errorlint // identity: Close passed this very value
		s.farewell()
	}
	_ = s.conn.Close()
}

// keepStatus sends status updates until the stream ends: when the confirmed
// position has moved, when the server asks, and at the latest every third of
// wal_sender_timeout.
func (s *Stream) keepStatus() error {
	beat := time.NewTicker(s.pace.beat)
	defer beat.Stop()
	gate := time.NewTimer(statusGap)
	defer gate.Stop()
	p := pinger{pace: s.pace}

	var open <-chan struct{} // s.moved, once statusGap has passed since a send
	send, ask := true, true  // the first proof of life
	for {
		if send {
			if err := s.send(ask); err != nil {
				return err
			}
			open = nil
			gate.Reset(statusGap)
		}
		send, ask = false, false
		select {
		case <-s.stop:
			return nil
		case <-s.finish:
			return s.endCopy()
		case <-s.asked:
			send = true
		case <-gate.C:
			open = s.moved
		case <-open:
			send = s.Confirmed() != s.reported
		case <-beat.C:
			var silent bool
			if send, ask, silent = p.beat(s.held(), s.conn.lastRead.Load()); silent {
				return fmt.Errorf("no answer from the server within wal_sender_timeout (%v)", s.pace.timeout)
			}
		}
	}
}

// send writes one status update; ask requests a reply. All three positions are
// set to the confirmed one, always: pglogrepl replaces a zero flush or apply
// position by the write position, and the server would then drop what is not
// settled.
func (s *Stream) send(ask bool) error {
	lsn := s.Confirmed()
	if lsn == 0 || lsn < s.reported {
		return fmt.Errorf("send standby status: position %s after %s", lsn, s.reported)
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.pace.proof))
	if s.state.Load() == ended {
		return nil // so that the deadline of Close is not replaced by a later one
	}
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), s.pg, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: lsn,
		WALFlushPosition: lsn,
		WALApplyPosition: lsn,
		ReplyRequested:   ask,
	})
	if err != nil {
		return fmt.Errorf("send standby status: %w", err)
	}
	s.reported = lsn
	if s.held() {
		s.heldWrite.Store(int64(s.conn.now()))
	}
	return nil
}

// endCopy sends the last status and CopyDone, after which nothing but the
// farewell may be sent, and waits for the end.
func (s *Stream) endCopy() error {
	if err := s.send(false); err != nil {
		return err
	}
	s.pg.Frontend().Send(&pgproto3.CopyDone{})
	if err := s.pg.Frontend().Flush(); err != nil {
		return fmt.Errorf("end the copy: %w", err)
	}
	<-s.stop
	return nil
}

// farewell tells the server that we leave; it need not arrive.
func (s *Stream) farewell() {
	_ = s.conn.SetWriteDeadline(time.Now().Add(closeTimeout))
	s.pg.Frontend().Send(&pgproto3.Terminate{})
	_ = s.pg.Frontend().Flush()
}
