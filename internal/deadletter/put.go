package deadletter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// NewMarker draws a marker. Nobody can guess it, so nobody can have the relay take a
// dead letter for written.
func NewMarker() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Each argument has exactly the type that the function is declared with, and they go by
// their places. Whoever may create functions in the schema, which on PostgreSQL 14 is
// everybody, could else give it another form that fits better, and have the relay run it
// with its own rights.
var putSQL = `
SELECT public.cdc_relay_dead_letter_put(
       $1::int4, $2::text, $3::text,
       $4::pg_lsn, $5::pg_lsn, $6::text, $7::int8,
       $8::text, $9::bytea, $10::text, $11::bytea,
       $12::bytea, $13::int8, $14::bool,
       $15::bytea[], $16::bytea[], $17::text,
       ` + Moment("$18") + `, ` + Moment("$19") + `,
       $20::text, $21::text, $22::int4,
       ` + Moment("$23") + `, ` + Moment("$24") + `,
       $25::bool, $26::int8, $27::text)`

// Put writes a new dead letter and its marker, and returns the marker; or, when there
// is one of the same position already, changes nothing and returns the marker of that
// one. ID, State, Replays, ReplayTopic, ReplayMarker, Created and Changed are the
// table's to fill.
//
// It writes only while walsender streams from the slot and fails with
// [catalog.ErrNotHolder] otherwise. When it fails in any other way the letter may have
// been written all the same: try again with the same marker.
func Put(ctx context.Context, db *catalog.DB, walsender uint32, l *Letter) (marker string, err error) {
	marker, err = put(ctx, db, walsender, l, clean)
	if catalog.SQLState(err) == stateUntranslatable {
		// A database in an encoding other than UTF-8 has no such character. What is
		// changed is for people only: a topic that exists has an ASCII name.
		marker, err = put(ctx, db, walsender, l, ascii)
	}
	return marker, err
}

func put(ctx context.Context, db *catalog.DB, walsender uint32, l *Letter, text func(string) string) (string, error) {
	p := l.Position
	value, size := l.Value, new(l.ValueBytes)
	if !l.ValueKept {
		value = nil
	}
	names, values, moved := make([][]byte, len(l.Headers)), make([][]byte, len(l.Headers)), len(value)+len(l.Key)
	for i, h := range l.Headers {
		names[i], values[i] = []byte(h.Name), h.Value
		moved += len(h.Name) + len(h.Value)
	}
	if l.ValueBytes < 0 {
		size = nil
	}
	return guarded(ctx, db, bulk(moved), "write a dead letter", putSQL,
		int64(walsender), l.Slot, l.SystemID, p.Commit.String(), p.LSN.String(), letterOf(p.Kind), int64(p.Index),
		orNull(text(l.Table)), l.MessageID, orNull(text(l.Topic)), l.Key, value, size, l.ValueKept,
		names, values, orNull(text(l.Type)), micros(l.RecordTime), micros(l.CommitTime),
		string(l.Reason), text(l.Error), l.Attempts, micros(l.FirstFailed), micros(l.LastFailed),
		l.MayBePublished, l.Ordinal, l.Marker)
}

var putBackSQL = `
SELECT public.cdc_relay_dead_letter_put_back(
       $1::int4, $2::text, $3::int8, $4::int4,
       $5::text, $6::text, $7::int4, ` + Moment("$8") + `,
       $9::bool, $10::text)`

// PutBack makes a replayed letter, whose replay was refused, dead again. It reads Slot,
// ID and Replays, which say what was refused, Reason, Error, Attempts (those of this
// replay, which are added), LastFailed, MayBePublished and Marker, and returns the
// marker to wait for: that one, or the ReplayMarker of a letter that is back already.
// A letter that has become something else meanwhile is left alone, and the marker is
// written all the same. It fails as [Put] does.
func PutBack(ctx context.Context, db *catalog.DB, walsender uint32, l *Letter) (marker string, err error) {
	try := func(text func(string) string) (string, error) {
		return guarded(ctx, db, 0, "put a dead letter back", putBackSQL,
			int64(walsender), l.Slot, l.ID, l.Replays, string(l.Reason), text(l.Error), l.Attempts,
			micros(l.LastFailed), l.MayBePublished, l.Marker)
	}
	marker, err = try(clean)
	if catalog.SQLState(err) == stateUntranslatable {
		marker, err = try(ascii)
	}
	return marker, err
}

// guarded runs a function that returns a marker, or NULL if the slot is not held.
func guarded(ctx context.Context, db *catalog.DB, longer time.Duration, what, sql string, args ...any) (string, error) {
	got, err := query(ctx, db, longer, what, pgx.RowTo[*string], sql, args...)
	switch {
	case err != nil:
		return "", err
	case len(got) == 0 || got[0] == nil:
		return "", catalog.ErrNotHolder
	}
	return *got[0], nil
}

// Held is the position of a row that is a dead letter, and the marker that follows it
// on the stream.
type Held struct {
	Position position.Position
	Marker   string
}

// lockSQL waits for whoever is writing a dead letter of the slot; the functions of the
// migration lock the same row FOR KEY SHARE. It is a statement and so a transaction of
// its own: the next one sees what was written.
const lockSQL = "SELECT slot FROM public.cdc_relay_slots WHERE slot = $1 FOR UPDATE"

// Load returns the dead letters, whatever their state, whose rows were committed at or
// after from, in the order of their positions. The caller streams from the slot: once
// Load returns, no predecessor can write another.
func Load(ctx context.Context, db *catalog.DB, slot, systemID string, from pglogrepl.LSN) ([]Held, error) {
	const sql = `
SELECT d.commit_lsn::text, d.change_lsn::text, d.kind, d.index, d.marker
  FROM public.cdc_relay_dead_letter d
 WHERE d.slot = $1 AND d.system_id = $2 AND d.commit_lsn >= $3
 ORDER BY d.commit_lsn, d.change_lsn, d.kind, d.index`
	if _, err := db.Exec(ctx, "wait for dead letters to be written", lockSQL, slot); err != nil {
		return nil, err
	}
	scan := func(row pgx.CollectableRow) (Held, error) {
		var h Held
		var kind string
		err := row.Scan(&h.Position.Commit, &h.Position.LSN, &kind, &h.Position.Index, &h.Marker)
		h.Position.Kind = kindOf(kind)
		return h, err
	}
	return query(ctx, db, 0, "read the dead letters", scan, sql, slot, systemID, from.String())
}

// History is what the dead letters tell about the last rows that were decided on.
type History struct {
	Total    int64   // how many there were when the last dead letter was written
	Ordinals []int64 // of the dead letters among the last window of them, ascending
}

// Recent returns the dead letters among the last window rows.
func Recent(ctx context.Context, db *catalog.DB, slot, systemID string, window int) (History, error) {
	const sql = `
SELECT ordinal FROM public.cdc_relay_dead_letter
 WHERE slot = $1 AND system_id = $2 ORDER BY ordinal DESC LIMIT $3`
	got, err := query(ctx, db, 0, "read the last dead letters", pgx.RowTo[int64], sql, slot, systemID, window)
	if err != nil || len(got) == 0 {
		return History{}, err
	}
	slices.Reverse(got)
	h := History{Total: got[len(got)-1]}
	first, _ := slices.BinarySearch(got, h.Total-int64(window)+1)
	h.Ordinals = got[first:]
	return h, nil
}
