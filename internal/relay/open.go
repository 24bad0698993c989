package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
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

// open gets the slot. The order matters: Kafka must have answered before the slot
// is asked for, else an instance that cannot publish would take it from one that
// can.
func (r *Relay) open(ctx context.Context) (*session, error) {
	if err := r.reachKafka(ctx); err != nil {
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
	r.held = true
	return s, nil
}

func (r *Relay) reachKafka(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return r.kafka.Ping(ctx)
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
	found, err := r.check(ctx, db)
	if err != nil {
		return nil, err
	}
	r.warn(found.Warnings)
	for {
		slot, err := r.free(ctx, db, found.Slot)
		if err != nil {
			return nil, err
		}
		s, err := r.start(ctx, db, found.Server)
		var refused *wal.ServerError
		if !errors.As(err, &refused) || !refused.SlotBusy() {
			return s, err
		}
		if found.Slot, err = r.look(ctx, db, slot.Name); err != nil { // somebody was faster
			return nil, err
		}
	}
}

// check looks at everything that is needed, before the slot is asked for.
func (r *Relay) check(ctx context.Context, db *catalog.DB) (catalog.Report, error) {
	found, err := db.Check(ctx, r.cfg.Spec)
	if err == nil && r.cfg.DeadLetters.Enabled {
		err = r.checkStore(ctx, db)
	}
	return found, err
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

// free waits until nobody streams from the slot, as a standby. It is ready if it
// could take over: what the checks find meanwhile keeps it from being ready and,
// should the slot become free, from taking it.
func (r *Relay) free(ctx context.Context, db *catalog.DB, slot catalog.Slot) (catalog.Slot, error) {
	fit, checked := true, time.Now()
	for slot.Active || !fit {
		r.beat()
		if r.cfg.Once {
			return slot, &SlotHeldError{Slot: slot.Name, Holder: slot.Holder.String()}
		}
		if fit {
			r.recovered()
			r.recoveredFrom(problemStuck) // That is for who streams.
		}
		r.standBy(slot)
		next, err := r.look(ctx, db, slot.Name)
		if err != nil {
			return slot, err
		}
		slot = next
		if time.Since(checked) >= tablesInterval {
			if fit, err = r.fit(ctx, db); err != nil {
				return slot, err
			}
			checked = time.Now()
		}
	}
	return slot, nil
}

func (r *Relay) standBy(slot catalog.Slot) {
	holder := "nobody"
	if slot.Active {
		holder = slot.Holder.String()
	}
	if r.state.enter(RoleStandby, holder) {
		r.log.Info("standing by", "holder", holder)
	}
}

// fit repeats for a standby what was asked before, and reports whether it could
// take over.
func (r *Relay) fit(ctx context.Context, db *catalog.DB) (bool, error) {
	if err := r.reachKafka(ctx); err != nil {
		r.failed(err)
		return false, nil
	}
	_, err := r.check(ctx, db)
	if err != nil && classify(err) == classPermanent {
		r.halted(problemHalt, fmt.Errorf("standing by, and not able to take over: %w", err))
		return false, nil
	}
	return err == nil, err
}

// look reads the slot a moment later.
func (r *Relay) look(ctx context.Context, db *catalog.DB, name string) (catalog.Slot, error) {
	if !wait(ctx, standbyPoll) {
		return catalog.Slot{}, ctx.Err()
	}
	slot, found, err := db.Slot(ctx, name)
	if err == nil && (!found || slot.Lost()) {
		err = ErrSlotChanged // the checks of the next session say what it is
	}
	return slot, err
}

// start opens the replication connection and starts to stream.
func (r *Relay) start(ctx context.Context, db *catalog.DB, server catalog.Server) (*session, error) {
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
		Confirmed: func(ctx context.Context) (pglogrepl.LSN, error) {
			slot, found, err := db.Slot(ctx, r.cfg.Spec.Slot)
			if err == nil && !found {
				err = ErrSlotChanged
			}
			return slot.Confirmed, err
		},
		ServerVersion: server.Version, BeforeRead: r.publisher.Flush,
	})
	if err != nil {
		return nil, err
	}
	return newSession(r, db, stream, server, system), nil
}
