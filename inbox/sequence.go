package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// verdict is what the sequence of its lane says of a message.
type verdict int

const (
	// goOn: it is next, or nothing is known against it.
	goOn verdict = iota
	// stale: it, or a later one, has been handled.
	stale
	// gap: an earlier one is missing, and the message is to be parked.
	gap
	// wait: an earlier one is missing, and the message is to be tried again, without
	// using an attempt.
	wait
)

// reached is how far a lane has been handled; its row is locked. The zero value: nothing
// has been.
type reached struct {
	version           *int64
	history, position *string
}

const (
	lockReached = `SELECT version, history, position FROM public.cdc_relay_inbox_sequence
		WHERE consumer = $1 AND lane = $2 FOR UPDATE`
	firstOfLane = `INSERT INTO public.cdc_relay_inbox_sequence (consumer, lane) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	// A later version or position that another way (a replay after others went on) has
	// put there stays.
	moveReached = `UPDATE public.cdc_relay_inbox_sequence
		SET version = greatest(version, $3),
		    position = CASE WHEN $4::text IS NULL THEN position
		                    WHEN history = $4 THEN greatest(position COLLATE "C", $5) ELSE $5 END,
		    history = coalesce($4, history), changed_at = now()
		WHERE consumer = $1 AND lane = $2`
	skipVersion = `UPDATE public.cdc_relay_inbox_sequence SET version = $3, changed_at = now()
		WHERE consumer = $1 AND lane = $2`
)

// sequenceCheck compares m with what its lane has reached, and keeps the lane's row
// locked until the end of tx, so that two messages of a lane cannot both be next. The
// claim comes before it: everybody locks in that order.
func (p *Processor) sequenceCheck(ctx context.Context, tx pgx.Tx, m *Message, lane []byte) (verdict, error) {
	v, err := p.compare(ctx, tx, m, lane)
	s := p.cfg.Sequence
	switch {
	case err != nil || v != gap:
		p.gaps.forget(m.ID)
	case s.OnGap == WaitGap && p.gaps.since(m.ID, p.now(), s.GapTimeout) < s.GapTimeout:
		return wait, nil
	}
	return v, err
}

// compare is sequenceCheck for a message that has waited long enough.
func (p *Processor) compare(ctx context.Context, tx pgx.Tx, m *Message, lane []byte) (verdict, error) {
	s := p.cfg.Sequence
	if s.Mode == Off || lane == nil {
		return goOn, nil
	}
	r, err := lockLane(ctx, tx, p.cfg.Consumer, lane)
	if err != nil {
		return goOn, err
	}
	return s.judge(m, r), nil
}

// lockLane locks the row of a lane. An unseen lane gets one first: there must be
// something that a second message of it waits for.
func lockLane(ctx context.Context, tx pgx.Tx, consumer string, lane []byte) (reached, error) {
	var r reached
	for range 2 {
		err := tx.QueryRow(ctx, lockReached, consumer, lane).Scan(&r.version, &r.history, &r.position)
		if err == nil {
			return r, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return r, fmt.Errorf("lock the sequence of the key: %w", err)
		}
		if _, err := tx.Exec(ctx, firstOfLane, consumer, lane); err != nil {
			return r, fmt.Errorf("begin the sequence of the key: %w", err)
		}
	}
	return r, errors.New("lock the sequence of the key: its row was deleted meanwhile")
}

// judge compares a message with what its lane has reached. A version decides when both
// the mode and the message know one; else the position, which tells what is old but not
// what is missing.
func (s Sequence) judge(m *Message, r reached) verdict {
	if version, ok := m.Version(); ok && s.Mode == ByVersion {
		last := s.First - 1
		switch {
		case r.version != nil:
			last = *r.version
		case s.AnyFirst:
			return goOn
		}
		switch {
		case version <= last:
			return stale
		case version > last+1:
			return gap
		}
		return goOn
	}
	at, ok := placeOf(m)
	if ok && r.history != nil && r.position != nil && at.history == *r.history && at.position <= *r.position {
		return stale
	}
	return goOn
}

// sequenceDone moves the lane of a message that has been handled; sequenceCheck has
// locked its row.
func (p *Processor) sequenceDone(ctx context.Context, tx pgx.Tx, m *Message, lane []byte) error {
	if p.cfg.Sequence.Mode == Off || lane == nil {
		return nil
	}
	var version *int64
	if v, ok := m.Version(); ok && p.cfg.Sequence.Mode == ByVersion {
		version = &v
	}
	var history, position *string
	if at, ok := placeOf(m); ok {
		history, position = &at.history, &at.position
	}
	if version == nil && history == nil {
		return nil
	}
	if _, err := tx.Exec(ctx, moveReached, p.cfg.Consumer, lane, version, history, position); err != nil {
		return fmt.Errorf("move the sequence of the key: %w", err)
	}
	return nil
}

// sequencePass moves the lane past a message that is dead and blocks nothing (Skip): the
// next version is to go on without it. Call it in the settling transaction, after the
// claim.
func (p *Processor) sequencePass(ctx context.Context, tx pgx.Tx, m *Message, lane []byte) error {
	version, ok := m.Version()
	s := p.cfg.Sequence
	if s.Mode != ByVersion || lane == nil || !ok {
		return nil
	}
	r, err := lockLane(ctx, tx, p.cfg.Consumer, lane)
	if err != nil {
		return err
	}
	if s.judge(m, r) != goOn {
		return nil // what is missing before it may still come
	}
	if _, err := tx.Exec(ctx, skipVersion, p.cfg.Consumer, lane, version); err != nil {
		return fmt.Errorf("pass over the dead letter in the sequence of its key: %w", err)
	}
	return nil
}

// place is the part of a position header that two messages compare by
// (docs/position-header.md). Only places of one history and timeline have an order.
type place struct{ history, position string }

// What the header is made of, by offset: "1.", history, timeline, fingerprint,
// partitions, commit to index, hash of the id.
const (
	positionLen                = 115
	historyAt, historyEnd      = 2, 27
	compareAt, compareEnd      = 54, 98
	kindAt                     = 88
	kindMessage           byte = 'm'
	replayHeader               = "cdc-relay-replay"
)

// placeOf reads the position of a message; false when it has none of this format, and
// when it is a replayed dead letter of the relay, which has the position of its replay.
func placeOf(m *Message) (place, bool) {
	text, ok := m.Position()
	if !ok || len(text) != positionLen || !strings.HasPrefix(text, "1.") || text[kindAt] == kindMessage {
		return place{}, false
	}
	if _, replayed := m.Header(replayHeader); replayed {
		return place{}, false
	}
	return place{history: text[historyAt:historyEnd], position: text[compareAt:compareEnd]}, true
}

// gapTimes remembers since when messages wait for an earlier version. It is not stored:
// after a restart they wait anew, which delays and loses nothing. The zero value is ready.
type gapTimes struct {
	mu    sync.Mutex
	first map[string]time.Time
}

// maxGapTimes bounds the memory for messages that never came back.
const maxGapTimes = 10_000

// since returns how long the message has waited, and begins to count when it is new.
func (g *gapTimes) since(id string, now time.Time, timeout time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if first, ok := g.first[id]; ok {
		return now.Sub(first)
	}
	if g.first == nil {
		g.first = make(map[string]time.Time)
	}
	if len(g.first) >= maxGapTimes {
		for other, first := range g.first {
			if now.Sub(first) > 2*timeout {
				delete(g.first, other)
			}
		}
	}
	g.first[id] = now
	return 0
}

func (g *gapTimes) forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.first, id)
}
