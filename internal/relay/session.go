package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/checkpoint"
	"github.com/cdc-relay/cdc-relay/internal/crash"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// session is one replication connection: from the moment the server lets us
// stream until the connection ends. What the lanes know outlives it; what was
// read and not acknowledged does not, since the server sends it again.
type session struct {
	r      *Relay
	db     *catalog.DB // used by the watcher once the session runs
	stream *wal.Stream
	server catalog.Server
	system wal.System
	start  pglogrepl.LSN // the slot's confirmed position when it became ours
	target pglogrepl.LSN // the server's WAL end at that moment

	begun    bool      // begin has succeeded
	history  string    // id of the slot's history
	recorded time.Time // of the last entry in the state row
	letters  *letters  // nil without the table of dead letters

	broken chan error // cap 1: why the session has to end

	quit    chan struct{} // closed when a stop begins: who is halted then has nothing to wait for
	lingers chan struct{} // closed when a stop has let the open transaction end, and only markers are read
	gate    gate          // held while the source cannot be trusted
	check   chan struct{} // asks the watcher to look at the publication now

	// mu guards the fields below: the dispatcher numbers rows and ends
	// transactions, the settler asks how far the position may move, a stop
	// looks for a transaction boundary. Nothing blocks while it is held.
	mu       sync.Mutex
	mark     *checkpoint.Watermark
	stopping bool

	cut atomic.Bool // a stop no longer waits for the end of the open transaction
}

// newSession takes over a stream that has not been read yet.
func newSession(r *Relay, db *catalog.DB, stream *wal.Stream, server catalog.Server, system wal.System) *session {
	start := stream.Confirmed()
	return &session{
		r: r, db: db, stream: stream, server: server, system: system, start: start,
		mark: checkpoint.New(start), broken: make(chan error, 1), lingers: make(chan struct{}),
		quit:  make(chan struct{}),
		check: make(chan struct{}, 1),
	}
}

// live begins the session and runs it until its connection ends or ctx does. No
// lane writes a new batch afterwards, and what was confirmed is remembered.
func (s *session) live(ctx context.Context) error {
	defer s.r.remember(s)
	defer func() { s.letters.close() }()
	defer s.r.publisher.End()
	if err := s.begin(ctx); err != nil {
		return err
	}
	return s.run(ctx)
}

// keep holds the slot for as long as a fault that somebody must act on is given
// before it is tried anew: the position goes on being reported, so the server
// keeps the connection, and nothing is read, sent or confirmed. It returns how long
// it has held it, less than d when the connection ended or a stop came.
func (s *session) keep(ctx context.Context, d time.Duration) time.Duration {
	began := time.Now()
	s.r.state.stream(s)
	s.stream.Interrupt()
	holding, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.stream.Done():
			cancel()
		case <-holding.Done():
		}
	}()
	w := watcher{s: s, idle: true}
	if err := w.run(holding); err != nil {
		s.r.log.Warn("the slot is let go", "err", err)
	}
	cancel()
	<-ended
	if ctx.Err() != nil && s.begun {
		s.leave(ctx)
	}
	return time.Since(began)
}

// run streams. The first error ends every goroutine; a stop ends them in order
// (see stop).
func (s *session) run(ctx context.Context) error {
	// A stop must not tear down what it still needs, so the goroutines live
	// under a context of their own.
	group, live := errgroup.WithContext(context.WithoutCancel(ctx))
	reading, cut := context.WithCancel(live)
	defer cut()
	read := make(chan struct{}) // closed when the dispatcher has returned
	group.Go(func() error {
		defer close(read)
		d := dispatcher{s: s}
		if err := d.run(reading); !errIsStop(err) {
			return err
		}
		return nil
	})
	group.Go(func() error { return s.settler(live) })
	group.Go(func() error { return s.watch(live) })
	group.Go(func() error {
		<-live.Done()
		s.stream.Interrupt() // the dispatcher may be waiting for a message
		return nil
	})
	group.Go(func() error { return s.stopper(ctx, live, read, cut) })
	err := group.Wait()
	if s.cut.Load() {
		s.farewell(ctx)
	}
	return err
}

// stopper waits for the end: a stop that was asked for, the position of a
// single run, or another goroutine's error.
func (s *session) stopper(ctx, live context.Context, read <-chan struct{}, cut context.CancelFunc) error {
	r := s.r
	if r.cfg.Once && s.drained(ctx, live) {
		s.stop(live, r.cfg.ShutdownTimeout, read, cut)
		return errDrained
	}
	select {
	case <-live.Done():
		return nil
	case <-ctx.Done():
	}
	timeout := r.cfg.ShutdownTimeout
	if errors.Is(context.Cause(ctx), errOnceTimeout) {
		timeout = 0 // the time is over
	}
	s.stop(live, timeout, read, cut)
	return context.Cause(ctx)
}

// close ends the connections, so that the slot is free. There may be no session.
func (s *session) close(ctx context.Context) {
	if s == nil {
		return
	}
	_ = s.stream.Close()
	s.r.state.stream(nil)
	for _, source := range []string{problemCatalog, problemTables, problemLetters} {
		s.r.state.clear(source) // The watcher's, who has ended: the next checks look anew.
	}
	farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if s.db != nil {
		_ = s.db.Close(farewell)
	}
}

// accept notes the start of a transaction and reports false when the message
// must not be taken any more, because of a stop.
func (s *session) accept(m *wal.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping && (!s.mark.Open() || s.cut.Load()) {
		return false
	}
	if m.Kind == wal.KindBegin {
		s.mark.Begin()
	}
	return true
}

// row numbers the row in hand. It becomes known to a lane right after; its
// transaction is open until then, so nothing is confirmed past it.
func (s *session) row() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark.Row()
}

// commit notes the end of a transaction whose rows are all known to a lane.
func (s *session) commit(end pglogrepl.LSN) error {
	s.mu.Lock()
	s.mark.Commit(end)
	s.mu.Unlock()
	return s.settle()
}

// keepalive notes how far the server has decoded.
func (s *session) keepalive(walEnd pglogrepl.LSN) error {
	s.mu.Lock()
	s.mark.Keepalive(walEnd)
	s.mu.Unlock()
	return s.settle()
}

// settler moves the confirmed position whenever a lane has settled rows.
func (s *session) settler(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.r.publisher.Reset():
			return err
		case err := <-s.broken:
			return err
		case <-s.r.publisher.Settled():
			if err := s.settle(); err != nil {
				return err
			}
		}
	}
}

// settle confirms what may be confirmed. The lanes are asked under the lock:
// an answer from before a commit was queued would not know its rows. And the
// stream is told under it: another goroutine could else tell a higher position
// first, and the lower one would be refused.
func (s *session) settle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.mark.Confirmed()
	lsn := s.mark.Advance(s.oldest())
	if lsn == before {
		return nil
	}
	crash.At(crash.Watermark)
	if err := s.stream.Confirm(lsn); err != nil {
		return fmt.Errorf("confirm %s: %w", lsn, err)
	}
	crash.At(crash.Confirmed)
	s.r.state.moved()
	s.r.recoveredFrom(problemStuck)
	return nil
}

// oldest is the lowest row that holds the position.
func (s *session) oldest() (seq uint64, any bool) {
	if s.letters == nil {
		return s.r.publisher.Oldest()
	}
	return lowest(s.r.publisher.Oldest, s.letters.oldest)
}

// lowest asks the lanes first: a row that becomes a dead letter is held from before its
// lane is done with it, so the other way round one could be missed in between.
func lowest(lanes, letters func() (seq uint64, any bool)) (seq uint64, any bool) {
	seq, any = lanes()
	if held, holds := letters(); holds && (!any || held < seq) {
		return held, true
	}
	return seq, any
}

// passed tells everybody that waits for it how far the stream has come.
func (s *session) passed(lsn pglogrepl.LSN) {
	s.r.publisher.Passed(lsn)
	if s.letters != nil {
		s.letters.reached(lsn)
	}
}

// fail ends the session.
func (s *session) fail(err error) {
	select {
	case s.broken <- err:
	default:
	}
}

// halt is a fault of the source that somebody must act on: the dispatcher
// reads no further, keeps the slot, and tries again every 30 seconds. It
// returns nil when try has succeeded and errStopped when ctx ends or a stop
// begins before.
func (s *session) halt(ctx context.Context, err error, try func() error) error {
	s.r.publisher.Flush()
	s.stream.Blocked(true)
	defer s.stream.Blocked(false)
	retry := time.NewTicker(s.r.halt)
	defer retry.Stop()
	for err != nil {
		if errIsStop(err) {
			return errStopped
		}
		s.r.halted(problemHalt, err)
		select {
		case <-retry.C:
		case <-s.quit:
			return errStopped
		case <-ctx.Done():
			return errStopped
		}
		err = try()
	}
	s.r.recoveredFrom(problemHalt)
	return nil
}

// pass waits while the source cannot be trusted.
func (s *session) pass(ctx context.Context) error {
	opened := s.gate.wait()
	if opened == nil {
		return nil
	}
	s.r.publisher.Flush()
	s.stream.Blocked(true)
	defer s.stream.Blocked(false)
	select {
	case <-opened:
		return nil
	case <-s.quit:
		return errStopped
	case <-ctx.Done():
		return errStopped
	}
}

// errIsStop reports whether err is how the dispatcher leaves on request.
func errIsStop(err error) bool {
	return errors.Is(err, errStopped) || errors.Is(err, wal.ErrInterrupted) || errors.Is(err, context.Canceled)
}
