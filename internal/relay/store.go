package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// store is what the relay asks of the dead letters over one connection.
type store interface {
	check(ctx context.Context) error
	// held fails unless the walsender streams from the slot on the server that is asked.
	held(ctx context.Context, slot string, walsender uint32) error
	load(ctx context.Context, slot, systemID string, from pglogrepl.LSN) ([]deadletter.Held, error)
	recent(ctx context.Context, slot, systemID string, window int) (deadletter.History, error)
	// put writes a letter; one with a number is put back after its replay was refused.
	// It returns the marker that was written with it.
	put(ctx context.Context, walsender uint32, l *deadletter.Letter) (string, error)
	get(ctx context.Context, slot string, id int64) (*deadletter.Letter, bool, error)
	// ahead returns some letters from a number on that were replayed since a position.
	ahead(ctx context.Context, slot string, id int64, replayed pglogrepl.LSN) ([]*deadletter.Letter, error)
	// settled is get once nobody is changing the letter any more.
	settled(ctx context.Context, slot string, id int64) (*deadletter.Letter, bool, error)
	// readValue reads the payload of a letter's row out of the outbox table.
	readValue(ctx context.Context, l *deadletter.Letter, idColumn, payloadColumn string) ([]byte, bool, error)
	stats(ctx context.Context, slot string) ([]deadletter.Stat, error)
	purge(ctx context.Context, slot string, before time.Time, limit int) (int64, error)
	// walEnd is where the server's log ends.
	walEnd(ctx context.Context, slot string) (pglogrepl.LSN, error)
	closed() bool
	close(ctx context.Context) error
}

// tableStore is the store in the source database.
type tableStore struct{ db *catalog.DB }

func (r *Relay) openTableStore(ctx context.Context) (store, error) {
	db, err := r.openCatalog(ctx)
	if err != nil {
		return nil, err
	}
	return tableStore{db}, nil
}

// checkTable checks, before the slot is asked for, that dead letters can be kept, and
// deleted if they are to be.
func (r *Relay) checkTable(ctx context.Context, db *catalog.DB) error {
	if err := deadletter.Check(ctx, db); err != nil || r.cfg.DeadLetters.Retention == 0 {
		return err
	}
	return deadletter.CheckPurge(ctx, db)
}

func (t tableStore) check(ctx context.Context) error { return deadletter.Check(ctx, t.db) }

func (t tableStore) held(ctx context.Context, slot string, walsender uint32) error {
	s, found, err := t.db.Slot(ctx, slot)
	if err == nil && (!found || s.Holder.PID != walsender) {
		err = ErrSlotChanged
	}
	return err
}

func (t tableStore) load(ctx context.Context, slot, systemID string, from pglogrepl.LSN) ([]deadletter.Held, error) {
	return deadletter.Load(ctx, t.db, slot, systemID, from)
}

func (t tableStore) recent(ctx context.Context, slot, systemID string, window int) (deadletter.History, error) {
	return deadletter.Recent(ctx, t.db, slot, systemID, window)
}

func (t tableStore) put(ctx context.Context, walsender uint32, l *deadletter.Letter) (string, error) {
	if l.ID != 0 {
		return deadletter.PutBack(ctx, t.db, walsender, l)
	}
	return deadletter.Put(ctx, t.db, walsender, l)
}

func (t tableStore) get(ctx context.Context, slot string, id int64) (*deadletter.Letter, bool, error) {
	return deadletter.Get(ctx, t.db, slot, id)
}

func (t tableStore) settled(ctx context.Context, slot string, id int64) (*deadletter.Letter, bool, error) {
	return deadletter.Settled(ctx, t.db, slot, id)
}

func (t tableStore) readValue(ctx context.Context, l *deadletter.Letter, idColumn, payloadColumn string) ([]byte, bool, error) {
	return deadletter.ReadValue(ctx, t.db, l.Table, idColumn, payloadColumn, l.MessageID)
}

func (t tableStore) stats(ctx context.Context, slot string) ([]deadletter.Stat, error) {
	return deadletter.Stats(ctx, t.db, slot, deadletter.Dead)
}

func (t tableStore) purge(ctx context.Context, slot string, before time.Time, limit int) (int64, error) {
	return deadletter.Purge(ctx, t.db, slot, before, limit)
}

func (t tableStore) walEnd(ctx context.Context, slot string) (pglogrepl.LSN, error) {
	s, found, err := t.db.Slot(ctx, slot)
	if err == nil && !found {
		err = ErrSlotChanged
	}
	return s.WALEnd, err
}

func (t tableStore) closed() bool { return t.db.Closed() }

func (t tableStore) close(ctx context.Context) error { return t.db.Close(ctx) }

// letters are what a session knows of the dead letters, and its way to them.
type letters struct {
	*holds

	s    *session
	over context.Context // ends with the session
	end  context.CancelFunc
	// known are the rows which are dead letters already and may be met again. It is the
	// dispatcher's.
	known map[position.Position]marker

	turn  chan struct{} // held by who looks at store
	store store
}

// storeRetry is the pause before a store that does not answer is asked again.
const storeRetry = time.Second

// openLetters reads, once the slot is ours, which rows are dead letters already. A relay
// that makes none, in a database without the table, goes without.
func (s *session) openLetters(ctx context.Context) error {
	r := s.r
	st, err := s.openStore(ctx)
	if err != nil {
		return err
	}
	l := &letters{holds: newHolds(), s: s, turn: make(chan struct{}, 1), store: st, known: map[position.Position]marker{}}
	if err := l.begin(ctx); err != nil {
		_ = st.close(context.WithoutCancel(ctx))
		if r.cfg.DeadLetters.Enabled || transient(err) {
			return err
		}
		if check, ok := errors.AsType[*catalog.CheckError](err); !ok || check.Class != catalog.Configuration {
			r.log.Warn("dead letters cannot be read, so none is replayed", "err", err)
		}
		return nil
	}
	l.over, l.end = context.WithCancel(context.Background())
	s.letters = l
	r.letters.Store(l)
	return nil
}

func (l *letters) begin(ctx context.Context) error {
	s := l.s
	slot, system := s.r.cfg.Spec.Slot, s.system.SystemID
	if err := l.store.check(ctx); err != nil {
		return err
	}
	history, err := l.store.recent(ctx, slot, system, s.r.breaker.window)
	if err != nil {
		return err
	}
	s.r.breaker.load(history, s.r.publisher.Decided())
	held, err := l.store.load(ctx, slot, system, s.start)
	if err != nil {
		return err
	}
	for _, h := range held {
		m, ok := parseMarker([]byte(h.Marker))
		if !ok {
			return fmt.Errorf("the dead letter of %s has no marker", h.Position)
		}
		l.known[h.Position] = m
	}
	return nil
}

// of returns the marker of a row that is a dead letter already.
func (l *letters) of(pos position.Position) (m marker, dead bool) {
	if l == nil || len(l.known) == 0 {
		return m, false
	}
	m, dead = l.known[pos]
	return m, dead
}

// close ends what is under way. The session of the publisher has ended before, so that
// nobody takes its rows for those of the next one.
func (l *letters) close() {
	if l == nil {
		return
	}
	l.s.r.letters.CompareAndSwap(l, nil)
	l.end()
	l.s.r.metrics.waiting(nil)
	l.turn <- struct{}{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if l.store != nil {
		_ = l.store.close(ctx)
	}
	<-l.turn
}

// open returns the store, over a new connection if the last is gone.
func (l *letters) open(ctx context.Context) (store, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-l.turn }()
	if l.store != nil && !l.store.closed() {
		return l.store, nil
	}
	st, err := l.s.openStore(ctx)
	if err != nil {
		return nil, err
	}
	l.store = st
	return st, nil
}

// openStore connects to the server that the stream comes from. With several hosts in the
// connection string, or a name that has moved, it may be another: a standby that is
// behind knows less than the stream tells, so a replay would be taken for a forged one.
func (s *session) openStore(ctx context.Context) (store, error) {
	st, err := s.r.openStore(ctx)
	if err != nil {
		return nil, err
	}
	if err := st.held(ctx, s.r.cfg.Spec.Slot, s.stream.PID()); err != nil {
		_ = st.close(context.WithoutCancel(ctx))
		if errors.Is(err, ErrSlotChanged) {
			err = fmt.Errorf("dead letters are asked of another server than the stream comes from: %w", err)
			s.fail(err) // The next session gets all its connections anew.
		}
		return nil, err
	}
	return st, nil
}

// transient reports whether an error of the store may be over in a moment. What it
// was asked to write may be written all the same.
func transient(err error) bool {
	check, ok := errors.AsType[*catalog.CheckError](err)
	if ok {
		return check.Transient()
	}
	return !errors.Is(err, catalog.ErrNotHolder) && !errors.Is(err, ErrSlotChanged)
}
