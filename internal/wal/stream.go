package wal

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// The states of a Stream; they only go up.
const (
	streaming   int32 = iota
	interrupted       // the reader has stopped for good (Interrupt, refuse); status still goes out
	ended             // the connection is closed, cause says why
)

// Stream is a running replication stream. Next and Barrier belong to one
// goroutine, the reader; every other method may be called by any.
//
// Proof of life. A status update goes out every second, or every twelfth of
// wal_sender_timeout if that is less. While the reader reads, it asks for an
// answer: a byte from the server is the proof, and a server that has not
// answered for a whole wal_sender_timeout is left. While the reader is held by
// back-pressure or was interrupted, an answer would not be seen. Then the proof
// is that the update could be written: the kernel ends a connection whose bytes
// stay unacknowledged for two thirds of wal_sender_timeout (TCP_USER_TIMEOUT,
// Linux), and a server that closed its end fails the second write. A walsender
// that is frozen keeps its slot, so that nobody can take over from us.
type Stream struct {
	pg      *pgconn.PgConn
	conn    net.Conn // of pg
	socket  *watched // conn, or what is below its TLS
	pace    pace
	decoder *decoder // the reader's

	reported pglogrepl.LSN // the writer's: what the last status update said
	refused  error         // the reader's: what it could not use

	state     atomic.Int32
	received  atomic.Uint64 // the highest position that may be confirmed
	confirmed atomic.Uint64 // what status updates report; slot's position <= confirmed <= received
	sealed    atomic.Bool   // nothing further may be confirmed
	blocked   atomic.Bool
	heldWrite atomic.Int64 // conn.now() of the last write while the reader was held
	heldBack  atomic.Pointer[ServerError]

	// Signals to the writer, with room for one: a pending one covers later ones.
	moved chan struct{} // confirmed has risen
	asked chan struct{} // the server wants a status update

	finish  chan struct{} // closed by Barrier: send the last status and end the copy
	stop    chan struct{} // closed by end, after cause is set
	stopped chan struct{} // closed by the writer as it leaves

	interrupting        sync.Mutex // state and read deadline change together
	finishOnce, endOnce sync.Once
	cause               error
}

// newStream takes over a connection that is in copy mode and starts its writer.
func newStream(pg *pgconn.PgConn, timeout time.Duration, confirmed pglogrepl.LSN) (*Stream, error) {
	socket, err := watchedBelow(pg.Conn())
	if err != nil {
		return nil, err
	}
	s := &Stream{
		pg:      pg,
		conn:    pg.Conn(),
		socket:  socket,
		pace:    paceOf(timeout),
		decoder: newDecoder(),
		moved:   make(chan struct{}, 1),
		asked:   make(chan struct{}, 1),
		finish:  make(chan struct{}),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
	s.received.Store(uint64(confirmed))
	s.confirmed.Store(uint64(confirmed))
	go s.write()
	return s, nil
}

// PID is the process id of the walsender.
func (s *Stream) PID() uint32 { return s.pg.PID() }

// Confirm tells the server that everything up to lsn is settled, so that it
// need not be sent again; lsn is the EndLSN of a commit or the WALEnd of a
// keepalive. It returns at once, and the update goes out within statusGap. It
// refuses zero, a position below the last one, and one that was not received
// on this stream: the server would take it and skip what lies before it.
func (s *Stream) Confirm(lsn pglogrepl.LSN) error {
	switch {
	case lsn == 0:
		return fmt.Errorf("confirm position: it is zero")
	case lsn > s.ReceivedLSN():
		return fmt.Errorf("confirm position %s: only %s was received on this stream", lsn, s.ReceivedLSN())
	case s.sealed.Load():
		return fmt.Errorf("confirm position %s: changes after it are missing from the stream", lsn)
	}
	for {
		old := s.confirmed.Load()
		if uint64(lsn) < old {
			return fmt.Errorf("confirm position %s: %s is confirmed already", lsn, pglogrepl.LSN(old))
		}
		if uint64(lsn) == old {
			return nil
		}
		if s.confirmed.CompareAndSwap(old, uint64(lsn)) {
			signal(s.moved)
			return nil
		}
	}
}

// Confirmed is the position that status updates report. It starts at the slot's
// own.
func (s *Stream) Confirmed() pglogrepl.LSN { return pglogrepl.LSN(s.confirmed.Load()) }

// ReceivedLSN is the highest position that was received and may once be
// confirmed: the end of a commit or of a keepalive.
func (s *Stream) ReceivedLSN() pglogrepl.LSN { return pglogrepl.LSN(s.received.Load()) }

// LastRead is when the last byte came from the server.
func (s *Stream) LastRead() time.Time {
	return s.socket.opened.Add(time.Duration(s.socket.lastRead.Load()))
}

// HeldBack returns the server's warning while a failover slot is held back by a
// standby of synchronized_standby_slots that is gone or behind, else nil. It
// ends with the next position received.
func (s *Stream) HeldBack() *ServerError { return s.heldBack.Load() }

// Blocked says that the reader is held by back-pressure, or no longer. While it
// is, status still goes out and the server's answers are not awaited.
func (s *Stream) Blocked(b bool) { s.blocked.Store(b) }

// Held reports whether nobody reads: the reader is blocked, or has stopped.
func (s *Stream) Held() bool { return s.blocked.Load() || s.state.Load() == interrupted }

// Alive reports whether the connection is not known dead and its last proof of
// life is younger than two thirds of wal_sender_timeout. It turns false before
// the server can give the slot to another. It costs three atomic loads and a
// look at the clock.
func (s *Stream) Alive() bool {
	if s.state.Load() == ended {
		return false
	}
	last := max(s.socket.lastRead.Load(), s.heldWrite.Load())
	return int64(s.socket.now())-last < int64(s.pace.proof)
}

// Done is closed when the connection has ended, and with it the hold on the slot.
func (s *Stream) Done() <-chan struct{} { return s.stop }

// Interrupt stops the reader without ending the stream: Next returns
// ErrInterrupted, at once if it waits, and never reads again. Status updates go
// on, so that what is in flight can still be settled and confirmed before
// Barrier and Close.
func (s *Stream) Interrupt() {
	s.interrupting.Lock()
	defer s.interrupting.Unlock()
	if s.state.CompareAndSwap(streaming, interrupted) {
		_ = s.conn.SetReadDeadline(past)
	}
}

// Close ends the stream and waits for its writer, at most a second. The server
// is told, so that it gives the slot free at once; what was confirmed last may
// not have reached it without Barrier. It returns why the stream ended if that
// was before Close, and may be called more than once.
func (s *Stream) Close() error {
	s.end(ErrClosed)
	_ = s.conn.SetWriteDeadline(time.Now().Add(closeTimeout)) // for a write under way
	<-s.stopped
	if err := s.reason(); err != ErrClosed { //nolint:errorlint // identity: end got this very value
		return err
	}
	return nil
}

// end makes err the reason of the stream's end, unless there is one, and
// releases reader and writer. After a failure the connection is closed at once,
// after Close by the writer, which has a farewell to send.
func (s *Stream) end(err error) {
	s.endOnce.Do(func() {
		s.cause = err
		s.state.Store(ended)
		close(s.stop)
		_ = s.conn.SetReadDeadline(past)
		if err != ErrClosed { //nolint:errorlint // identity: Close passed this very value
			_ = s.conn.Close()
		}
	})
}

// reason is why the stream ended; only after end.
func (s *Stream) reason() error {
	<-s.stop
	return s.cause
}

// raise notes a position that may be confirmed. Only the reader calls it.
func (s *Stream) raise(lsn pglogrepl.LSN) {
	if uint64(lsn) > s.received.Load() {
		s.received.Store(uint64(lsn))
		if s.heldBack.Load() != nil {
			s.heldBack.Store(nil)
		}
	}
}

// signal sends without waiting: a signal that is pending already will do.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
