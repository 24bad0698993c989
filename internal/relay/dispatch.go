package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

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
	commit time.Time         // commit time of the open transaction
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
			return errStopped
		}
		if err := d.dispatch(ctx, m); err != nil {
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
		d.s.r.publisher.Passed(m.EndLSN)
		return d.s.commit(m.EndLSN)
	case wal.KindKeepalive:
		d.s.r.publisher.Passed(m.WALEnd)
		return d.s.keepalive(m.WALEnd)
	case wal.KindRelation:
		return d.relation(ctx, m.Relation)
	default:
		d.s.r.metrics.ignored(m.Kind)
		return nil
	}
}

// insert hands one row to its lane. A row that cannot be handed on is a
// barrier: it is tried again until it can, and nothing behind it is read.
func (d *dispatcher) insert(ctx context.Context, m *wal.Message) error {
	d.advance(m.LSN)
	d.rec.Seq = 0
	err := d.hand(ctx, m)
	if err == nil || !stuck(err) {
		return err
	}
	err = fmt.Errorf("row at %s of the transaction that commits at %s: %w", d.pos.LSN, d.pos.Commit, err)
	return d.s.halt(ctx, err, func() error { return d.hand(ctx, m) })
}

// hand maps the row in hand and gives it to its lane, which takes a copy.
func (d *dispatcher) hand(ctx context.Context, m *wal.Message) error {
	r, seq := d.s.r, d.rec.Seq
	err := r.mapper.Map(m, d.pos, d.commit, time.Now(), &d.rec)
	if errors.Is(err, record.ErrIgnored) {
		return nil
	}
	if err != nil {
		return err
	}
	if seq == 0 { // else the row has been numbered at an earlier attempt
		seq = d.s.row()
	}
	d.rec.Seq = seq
	d.rec.More = true // flushed before the next read, and wherever reading stops
	if err := r.publisher.Publish(ctx, &d.rec); err != nil {
		return err
	}
	r.metrics.rows.Add(1)
	return nil
}

// stuck reports whether the row itself, or its table, is at fault: trying again
// from the start would meet the same row again.
func stuck(err error) bool {
	var refused *publish.RefusedError
	var row *record.RowError
	var column *record.ColumnError
	var table *record.TableError
	return errors.As(err, &refused) || errors.As(err, &row) || errors.As(err, &column) || errors.As(err, &table)
}

// advance moves the position to the next row. Rows of one COPY share an LSN
// and are told apart by their index among equals; an ordinal within the
// transaction would change with the set of published tables.
func (d *dispatcher) advance(lsn pglogrepl.LSN) {
	if d.pos.Kind == position.Row && d.pos.LSN == lsn {
		d.pos.Index++
		return
	}
	d.pos.LSN, d.pos.Kind, d.pos.Index = lsn, position.Row, 0
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
