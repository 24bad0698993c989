package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

const (
	// standbyPoll is how often a standby looks whether the slot is free. It asks
	// the catalog, so that no error line appears in the server's log.
	standbyPoll = 250 * time.Millisecond
	// connectTimeout bounds one attempt to get a connection, so that a server
	// which is back is found within seconds.
	connectTimeout = 3 * time.Second
	// startTimeout bounds START_REPLICATION, which may have to read WAL from the
	// slot's restart position on before it answers.
	startTimeout = 30 * time.Second
)

// open brings a session to the point where it streams. The order matters: Kafka
// must have answered before the slot is asked for, else an instance that cannot
// publish would take it from one that can; and nothing that was read before
// the slot was ours is trusted for where to go on.
func (r *Relay) open(ctx context.Context) (*session, error) {
	ping, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := r.kafka.Ping(ping); err != nil {
		return nil, err
	}
	r.recoveredFrom(problemKafka)
	db, err := r.openCatalog(ctx)
	if err != nil {
		return nil, err
	}
	s, err := r.acquire(ctx, db)
	if err != nil {
		_ = db.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

func (r *Relay) openCatalog(ctx context.Context) (*catalog.DB, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return catalog.Open(ctx, r.cfg.Catalog)
}

// acquire checks what the server has, waits until the slot is free and starts
// to stream.
func (r *Relay) acquire(ctx context.Context, db *catalog.DB) (*session, error) {
	if err := r.prepare(ctx, db); err != nil {
		return nil, err
	}
	found, err := db.Check(ctx, r.cfg.Spec)
	if err != nil {
		return nil, err
	}
	r.warn(found.Warnings)
	for {
		slot, err := r.free(ctx, db, found.Slot)
		if err != nil {
			return nil, err
		}
		s, err := r.start(ctx, db, found.Server, slot)
		var refused *wal.ServerError
		if !errors.As(err, &refused) || !refused.SlotBusy() {
			return s, err
		}
		if found.Slot, err = r.look(ctx, db, slot.Name); err != nil { // somebody was faster
			return nil, err
		}
	}
}

// prepare runs Config.Init until it has succeeded once. Creating a slot waits for
// every transaction that is open, however long, which is no reason to be taken for
// dead.
func (r *Relay) prepare(ctx context.Context, db *catalog.DB) error {
	if r.cfg.Init == nil || r.prepared {
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- r.cfg.Init(ctx, db) }()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			r.prepared = err == nil
			return err
		case <-tick.C:
			r.beat()
		}
	}
}

// warn logs what is doubtful about the set-up, each finding once a process.
func (r *Relay) warn(warnings []catalog.Warning) {
	for _, w := range warnings {
		if !slices.Contains(r.warned, w.Problem) {
			r.warned = append(r.warned, w.Problem)
			r.log.Warn(w.Problem, "check", w.Check, "next", w.Next)
		}
	}
}

// free waits until nobody streams from the slot, as a standby that is ready.
func (r *Relay) free(ctx context.Context, db *catalog.DB, slot catalog.Slot) (catalog.Slot, error) {
	for slot.Active {
		r.beat()
		holder := slot.Holder.String()
		if r.cfg.Once {
			return slot, &SlotHeldError{Slot: slot.Name, Holder: holder}
		}
		r.recovered()
		r.recoveredFrom(problemStuck) // That is for who streams.
		if r.state.enter(RoleStandby, holder) {
			r.log.Info("standing by, the slot is held", "holder", holder)
		}
		next, err := r.look(ctx, db, slot.Name)
		if err != nil {
			return slot, err
		}
		slot = next
	}
	return slot, nil
}

// look reads the slot a moment later.
func (r *Relay) look(ctx context.Context, db *catalog.DB, name string) (catalog.Slot, error) {
	if !wait(ctx, standbyPoll) {
		return catalog.Slot{}, ctx.Err()
	}
	slot, found, err := db.Slot(ctx, name)
	if err == nil && (!found || slot.Lost()) {
		err = errSlotChanged // the checks of the next session say what it is
	}
	return slot, err
}

// start opens the replication connection and starts to stream.
func (r *Relay) start(ctx context.Context, db *catalog.DB, server catalog.Server, slot catalog.Slot) (*session, error) {
	connect, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := wal.Connect(connect, r.cfg.WAL)
	if err != nil {
		return nil, err
	}
	system, err := conn.IdentifySystem(connect)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	begin, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stream, err := conn.Start(begin, wal.StartOptions{
		Confirmed: slot.Confirmed, ServerVersion: server.Version, BeforeRead: r.publisher.Flush,
	})
	if err != nil {
		return nil, err
	}
	return newSession(r, db, stream, server, system, slot.Confirmed), nil
}

// begin reads, now that the slot is ours, what says where to go on, and opens
// the lanes for the session.
func (s *session) begin(ctx context.Context) error {
	r := s.r
	slot, row, warnings, err := s.db.CheckSlot(ctx, s.server, r.cfg.Spec.Slot, r.cfg.Spec.Publication)
	if err != nil {
		return err
	}
	if slot.Holder.PID != s.stream.PID() {
		return s.ended()
	}
	if slot.Confirmed != s.start {
		return errSlotChanged
	}
	if err := row.CheckSystem(s.system.SystemID); err != nil {
		return err
	}
	r.warn(warnings)
	r.tellMoved(s)
	if err := s.db.UpdateConfirmed(ctx, slot.Name, s.start, s.system.Timeline, false); err != nil {
		return err
	}
	s.target = slot.WALEnd
	routing := r.cfg.Routing
	routing.Database = s.system.Database
	r.publisher.Begin(publish.Session{
		History:     position.HashHistory(row.HistoryID),
		Timeline:    s.system.Timeline,
		SystemID:    s.system.SystemID,
		Fingerprint: routing.Fingerprint(),
		WALEnd:      slot.WALEnd,
		Alive:       s.stream.Alive,
		Blocked:     s.stream.Blocked,
	})
	r.held = true
	r.complete(slot.WALEnd)
	r.lastGood = s.start
	r.recovered()
	if s.start != r.resumed.confirmed {
		r.recoveredFrom(problemStuck)
	}
	r.state.stream(s)
	r.log.Info("streaming", "from", s.start.String(), "system", s.system.SystemID,
		"timeline", s.system.Timeline, "encrypted", s.db.Encrypted())
	return nil
}

// ended returns why a stream that has lost the slot so soon has ended: the server
// says so behind what it has sent before.
func (s *session) ended() error {
	timer := time.AfterFunc(time.Second, s.stream.Interrupt)
	defer timer.Stop()
	for {
		_, err := s.stream.Next()
		switch {
		case errors.Is(err, wal.ErrInterrupted):
			return errSlotChanged
		case err != nil:
			return err
		}
	}
}

// tellMoved says loudly when the slot stands further on than this process has
// confirmed: somebody else moved it while we were away, and what lies between
// may be missing from the topics. The slot's position is the truth all the
// same, since the server cannot go back.
func (r *Relay) tellMoved(s *session) {
	s.compared = true
	if r.resumed.systemID != s.system.SystemID || r.resumed.timeline != s.system.Timeline || s.start <= r.resumed.confirmed {
		return
	}
	r.log.Error("the slot was moved by somebody else: events committed in this range may be missing from the topics",
		"after", r.resumed.confirmed.String(), "up_to", s.start.String(),
		"next", "find out who advanced or read the slot, and compare the outbox rows of that time with the topics")
}

// remember notes what a session that ends has confirmed. One that failed before it
// was compared with the one before it does not take its place.
func (r *Relay) remember(s *session) {
	last := resumePoint{
		systemID: s.system.SystemID, timeline: s.system.Timeline,
		confirmed: s.stream.Confirmed(), received: s.stream.ReceivedLSN(),
	}
	if !s.compared && r.resumed != (resumePoint{}) {
		last.systemID, last.timeline, last.confirmed = r.resumed.systemID, r.resumed.timeline, r.resumed.confirmed
	}
	r.resumed = last
}
