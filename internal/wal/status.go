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
	// maxBeat is the most time between two status updates.
	maxBeat = time.Second
	// closeTimeout bounds the farewell.
	closeTimeout = time.Second
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// pace is the timing that follows from wal_sender_timeout. When a connection
// breaks, the first update that is lost follows within a beat; it is known dead
// by proof after that, and if only the kernel can tell, a beat later, when the
// next write fails. The server, which last heard of us at most a beat before the
// break, gives the slot to another no earlier than timeout - beat after it. So
// three beats must fit into a third of the timeout; a twelfth leaves room for
// the kernel's timers, which were seen to be up to half a second late.
type pace struct {
	timeout time.Duration
	beat    time.Duration // from status update to status update
	proof   time.Duration // how long a sign of life is proof
}

func paceOf(timeout time.Duration) pace {
	return pace{timeout: timeout, beat: min(timeout/12, maxBeat), proof: timeout * 2 / 3}
}

// pinger decides at each beat whether to ask for an answer, and when to stop
// waiting for one.
type pinger struct {
	limit      int   // beats without a byte, after which the server counts as gone
	unanswered int   // pings without a byte after them
	seen       int64 // when the last byte that was counted had come
}

// beat returns whether the next status update asks for a reply, and whether the
// server has been silent for too long. read is when the last byte came. It
// counts beats and not time, so that a process that was stopped for long asks
// again before it gives up.
func (p *pinger) beat(held bool, read int64) (ask, silent bool) {
	if held {
		p.unanswered = 0
		return false, false
	}
	if read != p.seen {
		p.seen, p.unanswered = read, 0
	}
	if p.unanswered >= p.limit {
		return false, true
	}
	p.unanswered++
	return true, false
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

// keepStatus sends status updates until the stream ends: at every beat, and in
// between when the confirmed position has moved and when the server asks.
func (s *Stream) keepStatus() error {
	beat := time.NewTicker(s.pace.beat)
	defer beat.Stop()
	gate := time.NewTimer(statusGap)
	defer gate.Stop()
	p := pinger{limit: int(s.pace.timeout / s.pace.beat)}

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
			if ask, silent = p.beat(s.Held(), s.socket.lastRead.Load()); silent {
				return fmt.Errorf("no answer from the server within wal_sender_timeout (%v)", s.pace.timeout)
			}
			send = true
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
	if s.Held() {
		s.heldWrite.Store(int64(s.socket.now()))
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
