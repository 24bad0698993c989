package relay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/crash"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// logical takes a message of pg_logical_emit_message. Two kinds concern us; anybody
// may write either, so neither is believed. One that is not transactional may come
// from a transaction that was rolled back.
func (d *dispatcher) logical(ctx context.Context, m *wal.Message) error {
	l := d.s.letters
	if l != nil && m.Transactional && m.Prefix == deadletter.ReplayPrefix {
		if id, count, ok := deadletter.ParseReplay(m.Content); ok {
			d.advance(m.LSN, position.Message)
			return d.replay(ctx, id, count)
		}
	}
	if l == nil || !l.marks(m) {
		d.s.r.metrics.ignored(m.Kind)
	}
	return nil
}

// marks takes a message that may be a marker, and reports whether it is one that was
// awaited.
func (l *letters) marks(m *wal.Message) bool {
	if m.Kind != wal.KindLogical || !m.Transactional || m.Prefix != deadletter.MarkerPrefix {
		return false
	}
	came, ok := parseMarker(m.Content)
	return ok && l.came(came)
}

// replay publishes a dead letter for the count-th time, if that was asked for: what
// is sent, and whether, is in the table. It goes the way of a row.
func (d *dispatcher) replay(ctx context.Context, id int64, count int) error {
	l, r := d.s.letters, d.s.r
	letter, end, err := d.find(ctx, id, count)
	if err != nil {
		return err
	}
	if letter == nil {
		r.metrics.ignored(wal.KindLogical)
		return nil
	}
	crash.At(crash.Replaying)
	d.seq = d.s.row()
	d.rec = letterRecord(letter, d.rec.Headers[:0], count)
	d.rec.Position, d.rec.CommitTime, d.rec.Seq, d.rec.More = d.pos, d.commit, d.seq, true
	if end != 0 {
		d.rec.Dead = true
		l.awaitPosition(d.seq, end)
	}
	try := func() error { return d.send(ctx, letter) }
	if err := try(); err != nil {
		if !stuck(err) {
			return err
		}
		return d.s.halt(ctx, fmt.Errorf("replay %d of dead letter %d: %w", count, id, err), try)
	}
	return nil
}

// find reads the letter that a message names, nil when the message is to be
// passed over. Where it has been replayed and refused, or more, the row is settled;
// the end of the log is then what the stream has to reach before the position may
// pass, since that is in the log behind the message.
func (r *Relay) find(ctx context.Context, st store, id int64, count int) (*deadletter.Letter, pglogrepl.LSN, error) {
	slot := r.cfg.Spec.Slot
	letter, found, err := st.get(ctx, slot, id)
	if err == nil && found && letter.Replays < count {
		// A server sends a transaction as soon as it is in the log, and shows what it
		// has changed a moment later. Who has made the message still has the letter
		// locked then; who has only forged it has not.
		letter, found, err = st.settled(ctx, slot, id)
	}
	if err != nil || !found || letter.Replays < count || count <= 0 {
		return nil, 0, err
	}
	if letter.Replays == count && letter.State == deadletter.Replayed {
		return letter, 0, nil
	}
	end, err := st.walEnd(ctx, slot)
	return letter, end, err
}

// letterRecord is a dead letter as a record. Its time is the one that was refused,
// unless that was why, or is too old for a topic that deletes by it.
func letterRecord(l *deadletter.Letter, headers []publish.Header, count int) publish.Record {
	for _, h := range l.Headers {
		headers = append(headers, publish.Header{Name: h.Name, Value: h.Value})
	}
	headers = append(headers, publish.Header{Name: headerReplay, Value: strconv.AppendInt(nil, int64(count), 10)})
	out := publish.Record{
		Topic: l.Topic, Key: l.Key, Value: l.Value, Headers: headers, ID: l.MessageID, Letter: l.ID,
		Time: record.Time(l.RecordTime, time.Now()),
	}
	if l.ReplayTopic != "" {
		out.Topic = l.ReplayTopic
	}
	if l.Reason == deadletter.InvalidTimestamp {
		out.Time = time.Now()
	}
	return out
}

// send hands the replay in hand to its lane, with its value. What no lane takes is a
// dead letter again.
func (d *dispatcher) send(ctx context.Context, letter *deadletter.Letter) error {
	r := d.s.r
	err := d.fetch(ctx, letter)
	if err == nil {
		err = r.publisher.Publish(ctx, &d.rec)
	}
	if reason := poison(err); reason != "" {
		return d.bury(ctx, err, reason, origin{})
	}
	if err == nil && !d.rec.Dead {
		r.metrics.replayed.Inc()
	}
	return err
}

// goneError says that the value of a dead letter is nowhere.
type goneError struct {
	table string
	err   error
}

// Error names the table.
func (e *goneError) Error() string {
	if e.err != nil {
		return fmt.Sprintf("its value was not kept and cannot be read from table %s: %v", e.table, e.err)
	}
	return fmt.Sprintf("its value was not kept, and the row is not in table %s any more", e.table)
}

// fetch reads a value that was not kept with its letter.
func (d *dispatcher) fetch(ctx context.Context, letter *deadletter.Letter) error {
	if letter.ValueKept || d.rec.Dead {
		return nil
	}
	d.s.r.publisher.Flush() // A large value takes its time.
	id, payload := d.s.r.mapper.Columns()
	var found bool
	var refused error
	err := d.s.letters.ask(ctx, func(ctx context.Context, st store) (err error) {
		d.rec.Value, found, err = st.readValue(ctx, letter, id, payload)
		if err != nil && !transient(err) {
			refused, err = err, nil
		}
		return err
	})
	if err == nil && (refused != nil || !found) {
		err = &goneError{table: letter.Table, err: refused}
	}
	return err
}

// ask asks the store until it answers. The dispatcher reads no further meanwhile.
func (l *letters) ask(ctx context.Context, what func(context.Context, store) error) error {
	s := l.s
	try := func() error {
		st, err := l.open(ctx)
		if err != nil {
			return err
		}
		return what(ctx, st)
	}
	s.stream.Blocked(true)
	defer s.stream.Blocked(false)
	err := try()
	if err == nil {
		return nil
	}
	s.r.publisher.Flush()
	for ; err != nil; err = try() {
		if ctx.Err() != nil {
			return errStopped
		}
		pause := s.r.halt
		if transient(err) {
			pause = storeRetry
		}
		s.r.failing(problemLetters, "dead letters cannot be read, trying again", err)
		select {
		case <-time.After(pause):
		case <-s.quit:
			return errStopped
		case <-ctx.Done():
			return errStopped
		}
	}
	s.r.recoveredFrom(problemLetters)
	return nil
}

// poison is the reason for which a row can never be published, "" for every other
// error.
func poison(err error) deadletter.Reason {
	if refused, ok := errors.AsType[*publish.RefusedError](err); ok {
		return deadletter.Reason(refused.Label())
	}
	if _, ok := errors.AsType[*record.RowError](err); ok {
		return deadletter.InvalidRow
	}
	if _, ok := errors.AsType[*goneError](err); ok {
		return deadletter.ValueGone
	}
	return ""
}
