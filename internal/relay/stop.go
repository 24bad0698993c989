package relay

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/crash"
)

// markerWait bounds what a stop waits for markers.
const markerWait = 2 * time.Second

// stop begins the end of a session: read no further than the end of the open
// transaction, then wait until everything read is acknowledged. A third of the
// time is for the open transaction, since leaving in its middle means that it
// is sent again; the rest is for the acknowledgements. What the server has to
// be told at last is said by farewell, when every goroutine has ended.
func (s *session) stop(live context.Context, timeout time.Duration, read <-chan struct{}, cut context.CancelFunc) {
	r := s.r
	r.state.enter(RoleStopping, "")
	deadline := time.Now().Add(timeout)
	drain, cancel := context.WithDeadline(live, deadline)
	defer cancel()
	whole := s.finishTransaction(live, read, time.Now().Add(timeout/3))
	if whole && s.letters != nil { // markers may come as long as there is reading
		crash.At(crash.Draining)
		_ = r.publisher.Drained(drain)
		s.markers(drain)
	}
	s.cut.Store(true)
	cut()
	s.stream.Interrupt()
	<-read
	crash.At(crash.Draining)
	_ = r.publisher.Drained(drain) // what is left is counted below
	r.left = r.publisher.Snapshot().Rows
	if r.left > 0 || s.inTransaction() {
		r.log.Warn("stopped before everything was acknowledged: these rows, or their whole transactions, will be sent again",
			"rows", r.left)
	}
	if s.letters != nil {
		r.left += s.letters.pending()
	}
}

// markers waits a moment for the markers of dead letters that have not come yet.
// Without them the rows come again after the next start, which knows them.
func (s *session) markers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, markerWait)
	defer cancel()
	for s.letters.pending() > 0 {
		if !wait(ctx, 5*time.Millisecond) {
			return
		}
	}
}

// finishTransaction lets the dispatcher read on to the end of the open
// transaction, until the deadline. It reports whether it has got there: no row is
// being handed over, and none will be.
func (s *session) finishTransaction(live context.Context, read <-chan struct{}, deadline time.Time) bool {
	s.mu.Lock()
	s.stopping = true
	open := s.mark.Open()
	s.mu.Unlock()
	close(s.quit)
	if !open {
		return true
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-s.lingers:
		return true
	case <-read:
	case <-timer.C:
	case <-live.Done():
	}
	return false
}

// farewell confirms what was settled at last, and leaves. It runs when every
// goroutine of the session has ended.
func (s *session) farewell(ctx context.Context) {
	if err := s.settle(); err != nil {
		s.r.log.Warn("cannot confirm the last position", "err", err)
		return
	}
	s.leave(ctx)
}

// leave saves the confirmed position as the one of a clean stop, and makes sure
// that the server has taken it. It is saved first, since the end of the stream
// frees the slot, and from then on the row belongs to whoever takes it.
func (s *session) leave(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if err := s.saveLast(ctx); err != nil {
		s.r.log.Warn("cannot save the position of the clean stop", "err", err)
	}
	barrier, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := s.stream.Barrier(barrier); err != nil {
		s.r.log.Warn("the server may not have taken the last position, rows after it may be sent again", "err", err)
	}
}

// saveLast saves the position of a clean stop, over a new connection if a query
// was broken off by the stop and took the connection with it.
func (s *session) saveLast(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if s.db == nil || s.db.Closed() {
		db, err := s.r.openCatalog(ctx)
		if err != nil {
			return err
		}
		s.db = db
	}
	return s.save(ctx, true)
}

func (s *session) inTransaction() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark.Open()
}

// unconfirmed reports whether something was read, or waits to be read, that the
// server has not been told to be settled.
func (s *session) unconfirmed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Held() || s.mark.Open() || s.mark.Pending() > 0 || s.stream.Confirmed() < s.stream.ReceivedLSN()
}

// drained waits until everything up to the position at the start of the
// session is confirmed, and returns false when ctx or live ends before.
func (s *session) drained(ctx, live context.Context) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !reached(s.stream.Confirmed(), s.target) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		case <-live.Done():
			return false
		}
	}
	return true
}

// reached reports whether everything before target is confirmed. The position
// where the server would write next lies behind the header of a WAL page that
// has just been begun, while what is confirmed ends before it.
func reached(confirmed, target pglogrepl.LSN) bool {
	const page, header = 8192, 40
	if into := target % page; into <= header {
		target -= into
	}
	return confirmed >= target
}
