package relay

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// begin reads, now that the slot is ours, what says where to go on, and opens
// the lanes for the session. Nothing that was read before is used for it: a standby
// may have waited for days.
func (s *session) begin(ctx context.Context) error {
	r := s.r
	slot, row, warnings, err := s.db.CheckSlot(ctx, s.server, r.cfg.Spec.Slot, r.cfg.Spec.Publication)
	if err != nil {
		return err
	}
	if slot.Holder.PID != s.stream.PID() {
		return s.ended()
	}
	if s.server.Timeline != s.system.Timeline {
		return ErrSlotChanged // The two connections are to different servers.
	}
	if err := row.CheckSystem(s.system.SystemID, s.system.Timeline); err != nil {
		return err
	}
	r.warn(warnings)
	r.tellMoved(s, slot, row)
	if s.history, err = r.renew(ctx, s, row.HistoryID); err != nil {
		return err
	}
	if err := s.save(ctx, false); err != nil {
		return err
	}
	if !r.gap {
		r.lastGood = s.start
	}
	if err := s.tables(ctx); err != nil {
		return err
	}
	if err := s.openLetters(ctx); err != nil {
		return err
	}
	s.target = slot.WALEnd
	routing := r.cfg.Routing
	routing.Database = s.system.Database
	r.publisher.Begin(publish.Session{
		History:     position.HashHistory(s.history),
		Timeline:    s.system.Timeline,
		SystemID:    s.system.SystemID,
		Fingerprint: routing.Fingerprint(),
		Start:       s.start,
		WALEnd:      slot.WALEnd,
		Alive:       s.stream.Alive,
		Blocked:     s.stream.Blocked,
	})
	s.begun = true
	r.recovered()
	if s.start != r.resumed.confirmed {
		r.recoveredFrom(problemStuck)
	}
	r.state.stream(s)
	r.log.Info("streaming", "from", s.start.String(), "system", s.system.SystemID,
		"timeline", s.system.Timeline, "encrypted", s.db.Encrypted())
	return nil
}

// renew draws a new history if a topic did not agree with this one. It is done
// while the slot is held, and once: a history that was renewed meanwhile, by us or
// by who held the slot, is not doubted.
func (r *Relay) renew(ctx context.Context, s *session, history string) (string, error) {
	if history != r.doubted {
		r.doubted = ""
		return history, nil
	}
	history, err := s.db.RenewHistory(ctx, r.cfg.Spec.Slot, s.stream.PID(), history)
	if errors.Is(err, catalog.ErrNotHolder) {
		err = ErrDeposed
	}
	if err != nil {
		return "", err
	}
	r.doubted = ""
	r.metrics.histories.Add(1)
	r.log.Warn("the history of the slot begins anew", "from", s.start.String())
	return history, nil
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
			return ErrSlotChanged
		case err != nil:
			return err
		}
	}
}

// tellMoved says loudly when the slot stands further on than where it was left:
// somebody else moved it, and what lies between may be missing from the topics. The
// slot's position is the truth all the same, since the server cannot go back. If the
// last entry in the row is this process's own, nobody else has led meanwhile, and
// what this process has confirmed is known exactly.
func (r *Relay) tellMoved(s *session, slot catalog.Slot, row catalog.SlotRow) {
	if !r.resumed.recorded.IsZero() && row.ConfirmedAt.Equal(r.resumed.recorded) {
		row.Confirmed, row.CleanStop = r.resumed.confirmed, true
	}
	move, moved := slot.Moved(s.system.Timeline, row)
	if !moved {
		return
	}
	say := r.log.Warn
	if move.Exact {
		say = r.log.Error
	}
	w := move.Warning()
	say(w.Problem, "after", move.From.String(), "up_to", move.To.String(), "next", w.Next)
}

// remember notes where a session has ended. One that ended before it had made an
// entry in the state row has confirmed nothing.
func (r *Relay) remember(s *session) {
	r.resumed.received = s.stream.ReceivedLSN()
	if !s.recorded.IsZero() {
		r.resumed.recorded, r.resumed.confirmed = s.recorded, s.stream.Confirmed()
	}
}
