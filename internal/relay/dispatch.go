package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// errStopped ends the dispatcher at the point where a stop was asked for.
var errStopped = errors.New("stopped")

// dispatcher takes messages in stream order, numbers the rows, turns each into
// a record and hands it to its lane. It runs on the goroutine that reads the
// stream, so nothing is copied before the lane takes its own copy.
type dispatcher struct {
	s   *session
	rec publish.Record // reused from row to row

	pos    position.Position // of the change read last in the open transaction
	seq    uint64            // number of the row in hand, 0 as long as it has none
	commit time.Time         // commit time of the open transaction

	ahead  ahead
	from   *wal.Relation // of the row before
	source uint32        // its number
}

// run reads until the stream ends, a stop takes effect or ctx is cancelled.
func (d *dispatcher) run(ctx context.Context) error {
	defer d.s.r.publisher.Flush()
	for {
		m, err := d.s.stream.Next()
		if err != nil {
			return err
		}
		if err := d.s.pass(ctx); err != nil {
			return err
		}
		if !d.s.accept(m) {
			return d.linger(m)
		}
		if err := d.dispatch(ctx, m); err != nil {
			return err
		}
	}
}

// linger reads on though nothing is taken any more: without the markers of the dead
// letters that were written last the position cannot pass their rows. It ends with the
// reading.
func (d *dispatcher) linger(m *wal.Message) error {
	s := d.s
	if s.letters == nil || s.cut.Load() {
		return errStopped
	}
	s.r.publisher.Flush()
	close(s.lingers)
	for {
		if s.letters.marks(m) {
			if err := s.settle(); err != nil {
				return err
			}
		}
		var err error
		if m, err = s.stream.Next(); err != nil {
			return err
		}
	}
}

func (d *dispatcher) dispatch(ctx context.Context, m *wal.Message) error {
	switch m.Kind {
	case wal.KindInsert:
		return d.insert(ctx, m)
	case wal.KindBegin:
		d.pos = position.Position{Commit: m.FinalLSN}
		d.commit = m.CommitTime
		return nil
	case wal.KindCommit:
		d.s.r.metrics.transactions.Add(1)
		d.s.passed(m.EndLSN)
		return d.s.commit(m.EndLSN)
	case wal.KindKeepalive:
		d.s.passed(m.WALEnd)
		return d.s.keepalive(m.WALEnd)
	case wal.KindRelation:
		return d.relation(ctx, m.Relation)
	case wal.KindLogical:
		return d.logical(ctx, m)
	default:
		d.s.r.metrics.ignored(m.Kind)
		return nil
	}
}

// insert hands one row to its lane. A row that cannot be handed on, and does not
// become a dead letter, is a barrier: it is tried again until it can, and nothing
// behind it is read.
func (d *dispatcher) insert(ctx context.Context, m *wal.Message) error {
	d.advance(m.LSN, position.Row)
	d.seq = 0
	err := d.take(ctx, m)
	if err == nil || !stuck(err) {
		return err
	}
	err = fmt.Errorf("row at %s of the transaction that commits at %s: %w", d.pos.LSN, d.pos.Commit, err)
	return d.s.halt(ctx, err, func() error { return d.take(ctx, m) })
}

// take hands the row in hand to its lane, or makes it a dead letter if no lane can
// take it.
func (d *dispatcher) take(ctx context.Context, m *wal.Message) error {
	err := d.hand(ctx, m)
	if reason := poison(err); reason != "" {
		from := origin{table: d.s.r.table(d.sourceOf(m.Relation))}
		if row, ok := errors.AsType[*record.RowError](err); ok {
			from.unread = row.Unread
		}
		return d.bury(ctx, err, reason, from)
	}
	return err
}

// hand maps the row in hand and gives it to its lane, which takes a copy. One that is
// a dead letter already passes through its lane, too, if it has one, since what its
// partition ends with may be this row; it is held until its letter's marker comes.
func (d *dispatcher) hand(ctx context.Context, m *wal.Message) error {
	r := d.s.r
	marker, dead := d.s.letters.of(d.pos)
	err := r.mapper.Map(m, d.pos, d.commit, time.Now(), &d.rec)
	if errors.Is(err, record.ErrIgnored) {
		return nil
	}
	if err != nil && !(dead && stuck(err)) {
		return err
	}
	if d.seq == 0 { // else the row has been numbered at an earlier attempt
		d.seq = d.s.row()
		if dead {
			d.s.letters.await(d.seq, marker, true)
		}
	}
	d.rec.Seq, d.rec.Dead, d.rec.Source = d.seq, dead, d.sourceOf(m.Relation)
	d.rec.More = true // flushed before the next read, and wherever reading stops
	if err == nil {
		err = r.publisher.Publish(ctx, &d.rec)
	}
	if err != nil && !(dead && stuck(err)) {
		return err
	}
	r.metrics.rows.Add(1)
	return nil
}

// sourceOf numbers the table of a relation.
func (d *dispatcher) sourceOf(rel *wal.Relation) uint32 {
	if d.from != rel { // Neighbours mostly share theirs.
		d.from, d.source = rel, d.s.r.source(rel.Namespace, rel.Name)
	}
	return d.source
}

// bury makes the row in hand a dead letter: it has no lane, so nothing behind it is
// read before. It returns the error that it was given, with another, when that cannot
// be done.
func (d *dispatcher) bury(ctx context.Context, cause error, reason deadletter.Reason, from origin) error {
	s := d.s
	if !s.r.cfg.DeadLetters.Enabled || s.letters == nil {
		return cause
	}
	if d.seq == 0 {
		d.seq = s.row()
	}
	d.rec.Seq = d.seq
	now := time.Now()
	f := publish.Refusal{Record: d.rec, Reason: string(reason), Err: cause, First: now, Last: now}
	s.r.publisher.Flush()
	s.stream.Blocked(true)
	defer s.stream.Blocked(false)
	err := s.letters.bury(ctx, &f, from)
	switch {
	case err == nil && f.Letter == 0:
		s.r.metrics.rows.Add(1)
		return nil
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errStopped
	}
	return fmt.Errorf("%w; %w", cause, err)
}

// stuck reports whether the row itself, or its table, is at fault: trying again
// from the start would meet the same row again.
func stuck(err error) bool {
	var refused *publish.RefusedError
	var row *record.RowError
	var column *record.ColumnError
	var table *record.TableError
	var gone *goneError
	return errors.As(err, &refused) || errors.As(err, &row) || errors.As(err, &column) || errors.As(err, &table) || errors.As(err, &gone)
}

// advance moves the position to the next change. Rows of one COPY share an LSN
// and are told apart by their index among equals; an ordinal within the
// transaction would change with the set of published tables.
func (d *dispatcher) advance(lsn pglogrepl.LSN, kind position.Kind) {
	if d.pos.Kind == kind && d.pos.LSN == lsn {
		d.pos.Index++
		return
	}
	d.pos.LSN, d.pos.Kind, d.pos.Index = lsn, kind, 0
}

// relation compiles the mapping for a table as the stream describes it. A
// column that is needed and gone halts before the first row without it.
func (d *dispatcher) relation(ctx context.Context, rel *wal.Relation) error {
	compile := func() error { return d.s.r.mapper.Relation(rel) }
	if err := compile(); err != nil {
		return d.s.halt(ctx, err, compile)
	}
	d.s.checkSoon()
	return nil
}
