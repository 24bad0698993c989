package wal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// The server's functions whose notices are part of the protocol. They come in
// the order of the stream.
const (
	// routineLoadPublications warns, from Postgres 18 on, that a publication does
	// not exist: changes are left out and the slot goes on.
	routineLoadPublications = "LoadPublications"
	// routineStandbySlots warns that a failover slot waits for a standby of
	// synchronized_standby_slots: nothing is lost.
	routineStandbySlots = "StandbySlotsHaveCaughtup"
)

const (
	// barrierTimeout bounds Barrier.
	barrierTimeout = 2 * time.Second
	// While data is coming, Barrier first leaves it for barrierPause and then reads
	// for barrierGulp, in turn, each pause twice as long as the one before.
	barrierPause = 200 * time.Millisecond
	barrierGulp  = 100 * time.Millisecond
)

// Next waits for the next message. It has no deadline: Close, Interrupt and the
// stream's own watch over the connection end it. The message is valid until the
// next call. After an error every call returns that error; one that the server
// sent is a *ServerError, one that breaks the protocol a *ProtocolError. What
// comes cannot be used then, but as long as the server keeps the connection up,
// the slot is still ours: see [Stream.Done].
//
// It reads from pgproto3 and not through pgconn, which after an error would
// dial the server once more to cancel, and hold the connection, and with it the
// slot, for up to 15 seconds.
func (s *Stream) Next() (*Message, error) {
	for {
		switch s.state.Load() {
		case interrupted:
			if s.refused != nil {
				return nil, s.refused
			}
			return nil, ErrInterrupted
		case ended:
			return nil, s.reason()
		}
		received, err := s.pg.Frontend().Receive()
		if err != nil {
			return nil, s.readFailed(err)
		}
		data, ok := received.(*pgproto3.CopyData)
		if !ok {
			m, err := s.other(received)
			if err != nil {
				return nil, err
			}
			if m != nil {
				return m, nil
			}
			continue
		}
		asked, err := s.decoder.decode(data.Data)
		if err != nil {
			return nil, s.refuse(err)
		}
		s.socket.gather.backlog = s.decoder.backlog
		m := &s.decoder.msg
		switch m.Kind {
		case KindCommit:
			s.raise(m.EndLSN)
		case KindKeepalive:
			s.raise(m.WALEnd)
			if asked {
				signal(s.asked)
			}
		}
		return m, nil
	}
}

// readFailed turns an error of the socket into the one to return.
func (s *Stream) readFailed(err error) error {
	var timeout net.Error
	if s.state.Load() == interrupted && errors.As(err, &timeout) && timeout.Timeout() {
		return ErrInterrupted
	}
	return s.fail(fmt.Errorf("read the replication stream: %w", err))
}

// refuse stops the reader for good at something that it cannot use. The server
// knows of no fault, so the stream lives on, and with it the hold on the slot.
func (s *Stream) refuse(err error) error {
	s.refused = err
	s.Interrupt()
	return err
}

// fail ends the stream and returns the reason, which may be an earlier one.
func (s *Stream) fail(err error) error {
	s.end(err)
	return s.reason()
}

// other handles what is not CopyData: a message for the caller, nothing, or the
// end.
func (s *Stream) other(received pgproto3.BackendMessage) (*Message, error) {
	switch m := received.(type) {
	case *pgproto3.NoticeResponse:
		return s.notice(streamNotice(m))
	case *pgproto3.ErrorResponse:
		return nil, s.fail(streamError(m))
	case *pgproto3.CopyDone, *pgproto3.CommandComplete:
		return nil, s.fail(ErrEnded)
	case *pgproto3.ParameterStatus:
		return nil, nil // a reload changed a setting; ours are pinned
	}
	return nil, s.refuse(protocolErrorf("unexpected %T in the replication stream", received))
}

// notice tells the server's notices apart by the routine that raised them.
func (s *Stream) notice(n *ServerError) (*Message, error) {
	switch n.Routine {
	case routineLoadPublications:
		s.sealed.Store(true)
		return nil, s.refuse(n)
	case routineStandbySlots:
		if s.heldBack.Swap(n) != nil {
			return nil, nil // repeated for as long as it lasts
		}
	}
	s.decoder.msg = Message{Kind: KindNotice, Notice: n}
	return &s.decoder.msg, nil
}

// Barrier makes sure that the server has taken the last confirmed position, at
// shutdown: it sends that position and CopyDone, then reads and drops what
// still comes until the server's own CopyDone, which it sends only after it has
// handled everything before ours. A reply to a requested keepalive would not
// prove as much, as it looks like any other keepalive. It takes at most two
// seconds. Afterwards the stream can only be closed.
//
// In the middle of a large transaction a walsender that can write without
// waiting does not look at what it was sent until half of wal_sender_timeout has
// passed; so Barrier lets data pile up until the sender has to wait.
//
// It belongs to the reader: call it where Next was called, or once the
// goroutine that did has returned.
func (s *Stream) Barrier(ctx context.Context) error {
	s.Interrupt()
	if s.state.Load() == ended {
		return s.reason()
	}
	ctx, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	s.interrupting.Lock() // an Interrupt under way has set its deadline
	_ = s.conn.SetReadDeadline(time.Time{})
	s.interrupting.Unlock()
	defer context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(past) })()
	s.finishOnce.Do(func() { close(s.finish) })
	pause, gulped := barrierPause, time.Now()
	for {
		received, err := s.pg.Frontend().Receive()
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("wait for the server to take position %s: %w", s.Confirmed(), ctx.Err())
		case err != nil:
			return s.fail(fmt.Errorf("read the replication stream: %w", err))
		}
		switch m := received.(type) {
		case *pgproto3.CopyDone:
			return nil
		case *pgproto3.ErrorResponse:
			return s.fail(streamError(m))
		case *pgproto3.CommandComplete:
			return s.fail(ErrEnded)
		}
		if !time.Now().Before(gulped) {
			wait(ctx, pause)
			pause, gulped = 2*pause, time.Now().Add(barrierGulp)
		}
	}
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
