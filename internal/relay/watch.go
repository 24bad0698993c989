package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

const (
	// watchInterval is how often the slot is read while streaming.
	watchInterval = time.Second
	// tablesInterval is how often the publication is checked. A table that is
	// taken out of it goes missing from the stream without a word.
	tablesInterval = 3 * time.Second
	// saveInterval is how often the confirmed position is written to the state
	// row.
	saveInterval = time.Minute
	// queryTimeout bounds one look at the catalog.
	queryTimeout = 3 * time.Second
)

// watcher looks after the session over the ordinary connection: it reads the
// slot, checks the publication and saves the position. Losing that connection
// costs nothing but its answers; it is opened again at the next tick.
type watcher struct {
	s          *session
	idle       bool // nothing is read from the stream: only the slot is looked at
	checked    time.Time
	saved      time.Time
	letters    upkeep
	terminated bool // the ordinary connection ended by an administrator's command
}

func (s *session) watch(ctx context.Context) error {
	w := watcher{s: s, checked: time.Now(), saved: time.Now()}
	return w.run(ctx)
}

func (w *watcher) run(ctx context.Context) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.s.check:
			w.checked = time.Time{}
		case <-tick.C:
		}
		w.s.r.beat()
		if err := w.look(ctx); err != nil {
			return err
		}
		w.letters.round(ctx, w.s.letters)
	}
}

// look does one round. It returns an error only when the session must end.
//
// A server that shuts down ends ordinary connections first and then waits for the
// walsenders, and a walsender waits until everything is confirmed. Only a new
// attempt tells a shutdown from a connection that somebody has ended, so it is made
// at once.
func (w *watcher) look(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err := w.round(asking)
	if catalog.Terminated(err) {
		w.terminated = true
		err = w.round(asking)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		w.terminated = false
		w.s.r.recoveredFrom(problemCatalog)
		return nil
	case errors.Is(err, ErrDeposed):
		return err
	case w.terminated && catalog.Refused(err) && w.s.unconfirmed():
		return errShutdown
	}
	if w.s.r.state.fail(problemCatalog, err.Error()) {
		w.s.r.log.Warn("the catalog connection is interrupted, trying again", "err", err)
	}
	return nil
}

func (w *watcher) round(ctx context.Context) error {
	s := w.s
	if s.db == nil || s.db.Closed() {
		db, err := s.r.openCatalog(ctx)
		if err != nil {
			return err
		}
		s.db = db
	}
	slot, found, err := s.db.Slot(ctx, s.r.cfg.Spec.Slot)
	if err != nil {
		return err
	}
	if !found || !slot.Active || slot.Holder.PID != s.stream.PID() {
		return ErrDeposed // Or the connection is to another server than the stream.
	}
	s.r.metrics.slot(slot)
	if w.idle {
		return nil
	}
	if time.Since(w.checked) >= tablesInterval {
		if err := s.tables(ctx); err != nil {
			return err
		}
		w.checked = time.Now()
	}
	if time.Since(w.saved) >= saveInterval {
		if err := s.save(ctx, false); err != nil {
			return err
		}
		w.saved = time.Now()
	}
	return nil
}

// tables checks publication and membership. While the check fails the
// dispatcher is held, so that nothing more is confirmed past rows that the
// server leaves out. The error says that it was not possible to look.
func (s *session) tables(ctx context.Context) error {
	at := s.stream.ReceivedLSN() // before the check: what it says holds at least up to here
	_, _, err := s.db.CheckPublication(ctx, s.r.cfg.Spec.Publication, s.r.cfg.Spec.Tables, s.r.cfg.Spec.Ignored)
	var check *catalog.CheckError
	if errors.As(err, &check) && check.Class != catalog.Configuration || err != nil && check == nil {
		return err
	}
	if err != nil {
		s.gate.close()
		s.r.halted(problemTables, s.r.gapped(err))
		return nil
	}
	if s.r.gap { // It ends here, however far we have read.
		slot, _, err := s.db.Slot(ctx, s.r.cfg.Spec.Slot)
		if err != nil {
			return err
		}
		s.r.complete(slot.WALEnd)
	}
	s.r.lastGood = at
	s.gate.open()
	s.r.recoveredFrom(problemTables)
	return nil
}

// save writes the confirmed position to the state row.
func (s *session) save(ctx context.Context, clean bool) error {
	at, err := s.db.UpdateConfirmed(ctx, s.r.cfg.Spec.Slot, s.stream.PID(), s.stream.Confirmed(), s.system.Timeline, clean)
	if errors.Is(err, catalog.ErrNotHolder) {
		return ErrDeposed
	}
	if err == nil {
		s.recorded = at
	}
	return err
}

// checkSoon asks for a look at the publication now.
func (s *session) checkSoon() {
	select {
	case s.check <- struct{}{}:
	default:
	}
}

// gate holds the dispatcher while the source cannot be trusted. The zero value
// is open.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // nil while open, closed by open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
}

// open lets the dispatcher pass.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// wait returns a channel that is closed when the gate opens, nil while it is
// open.
func (g *gate) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}
