package deadletter

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

var columns = strings.Join([]string{
	"id", "slot", "system_id", "commit_lsn::text", "change_lsn::text", "kind", "index", "state",
	"coalesce(source_table, '')", "message_id", "coalesce(topic, '')", "record_key",
	"coalesce(value_bytes, -1)", "value_kept", "header_names", "header_values", "coalesce(type, '')",
	MicrosOf("record_time"), MicrosOf("commit_time"),
	"reason", "error", "attempts", MicrosOf("first_failed_at"), MicrosOf("last_failed_at"), "may_be_published",
	"ordinal", "marker", "replays", "coalesce(replay_topic, '')", "coalesce(replay_marker, '')",
	MicrosOf("created_at"), MicrosOf("changed_at"),
}, ", ")

// scan reads columns, and what comes after them into more.
func (l *Letter) scan(row pgx.CollectableRow, more ...any) error {
	var kind string
	var names, values [][]byte
	var recorded, committed, first, last, created, changed *int64
	p := &l.Position
	into := []any{
		&l.ID, &l.Slot, &l.SystemID, &p.Commit, &p.LSN, &kind, &p.Index, &l.State,
		&l.Table, &l.MessageID, &l.Topic, &l.Key,
		&l.ValueBytes, &l.ValueKept, &names, &values, &l.Type, &recorded, &committed,
		&l.Reason, &l.Error, &l.Attempts, &first, &last, &l.MayBePublished,
		&l.Ordinal, &l.Marker, &l.Replays, &l.ReplayTopic, &l.ReplayMarker, &created, &changed,
	}
	if err := row.Scan(append(into, more...)...); err != nil {
		return err
	}
	p.Kind = kindOf(kind)
	l.Headers = HeadersOf(names, values)
	l.RecordTime, l.CommitTime = TimeOf(recorded), TimeOf(committed)
	l.FirstFailed, l.LastFailed = TimeOf(first), TimeOf(last)
	l.Created, l.Changed = TimeOf(created), TimeOf(changed)
	return nil
}

// HeadersOf puts names and values together.
func HeadersOf(names, values [][]byte) (headers []Header) {
	for i, name := range names {
		h := Header{Name: string(name)}
		if i < len(values) {
			h.Value = values[i]
		}
		headers = append(headers, h)
	}
	return headers
}

// Get returns one dead letter of the slot, whole.
func Get(ctx context.Context, db *catalog.DB, slot string, id int64) (*Letter, bool, error) {
	const what = "read a dead letter"
	sql := "SELECT " + columns + ", CASE WHEN value_bytes <= $3 THEN value END FROM public.cdc_relay_dead_letter WHERE slot = $1 AND id = $2"
	scan := func(row pgx.CollectableRow) (*Letter, error) {
		l := new(Letter)
		return l, l.scan(row, &l.Value)
	}
	got, err := query(ctx, db, 0, what, scan, sql, slot, id, int64(bulkBytes))
	if err != nil || len(got) == 0 {
		return nil, false, err
	}
	l := got[0]
	if !l.ValueKept || l.ValueBytes <= bulkBytes {
		return l, true, nil
	}
	// A large value takes its time, which is known by now.
	const valueSQL = "SELECT value FROM public.cdc_relay_dead_letter WHERE id = $1"
	values, err := query(ctx, db, bulk(l.ValueBytes), what, pgx.RowTo[[]byte], valueSQL, id)
	if err != nil || len(values) == 0 {
		return nil, false, err
	}
	l.Value = values[0]
	return l, true, nil
}

// readValueLimit is for a value of unknown size, which was too large to be kept.
const readValueLimit = 2 * time.Minute

// ReadValue reads the payload of a row out of the outbox table by its id, as the stream
// would have it: the text of its type, and a bytea as the bytes it stands for; nil for
// NULL. The table is named as in [Letter.Table], the columns exactly. A table, column or
// row that is not there (any more) is not found.
func ReadValue(ctx context.Context, db *catalog.DB, table, idColumn, payloadColumn string, messageID []byte) (value []byte, found bool, err error) {
	name, err := catalog.ParseTableName(table)
	if err != nil {
		return nil, false, err
	}
	t, found, err := db.Table(ctx, name)
	if err != nil || !found {
		return nil, false, err
	}
	id, known := t.Column(idColumn)
	payload, knownToo := t.Column(payloadColumn)
	if !known || !knownToo || messageID == nil {
		return nil, false, nil
	}
	var key any = string(messageID) // the server takes it for whatever type the column has
	if id.Type == "bytea" {
		key = messageID
	}
	sql := "SELECT " + ident(payloadColumn) + " FROM " + name.Quoted() + " WHERE " + ident(idColumn) + " = $1 LIMIT 1"
	// The driver asks for results in text form, which is the form of the stream.
	scan := func(row pgx.CollectableRow) ([]byte, error) { return textOf(row.RawValues()[0], payload.Type) }
	got, err := catalog.QueryWithin(ctx, db, readValueLimit, "read a payload from table "+name.String(), scan, sql, key)
	if err == nil && len(got) == 1 {
		return got[0], true, nil
	}
	if strings.HasPrefix(catalog.SQLState(err), "22") { // the id cannot be one of the column's values
		err = nil
	}
	return nil, false, explainRead(db, err, name)
}

// textOf copies a raw value, which belongs to the driver.
func textOf(raw []byte, columnType string) ([]byte, error) {
	switch {
	case raw == nil:
		return nil, nil
	case columnType == "bytea":
		value := make([]byte, max(len(raw)-len(`\x`), 0)/2)
		_, err := hex.Decode(value, raw[min(len(raw), len(`\x`)):])
		return value, err
	}
	return append([]byte{}, raw...), nil
}

func explainRead(db *catalog.DB, err error, table catalog.TableName) error {
	var e *catalog.CheckError
	if errors.As(err, &e) && e.Class == catalog.Privilege {
		e.Next = "as the owner of the table: GRANT SELECT ON " + table.Quoted() + " TO " + ident(db.Role())
	}
	return err
}

// Stat counts the dead letters of one owner, which is a slot or a consumer, by state and
// reason.
type Stat struct {
	Owner  string
	State  State
	Reason Reason
	Count  int64
	Oldest time.Time // when the oldest of them became one
}

// Stats counts the dead letters of a slot, "" for all slots, in some states, none for
// all. Those that are [Dead] are counted from an index alone.
func Stats(ctx context.Context, db *catalog.DB, slot string, states ...State) ([]Stat, error) {
	sql := `
SELECT slot, state, reason, count(*), ` + MicrosOf("min(created_at)") + `
  FROM public.cdc_relay_dead_letter
 WHERE ($1::text = '' OR slot = $1)` + inStates(states) + `
 GROUP BY slot, state, reason ORDER BY slot, state, reason`
	return query(ctx, db, 0, "count the dead letters", ScanStat, sql, slot)
}

// ScanStat reads owner, state, reason, count and, by [MicrosOf], the oldest.
func ScanStat(row pgx.CollectableRow) (Stat, error) {
	var s Stat
	var oldest *int64
	err := row.Scan(&s.Owner, &s.State, &s.Reason, &s.Count, &oldest)
	s.Oldest = TimeOf(oldest)
	return s, err
}

// inStates writes the states into the statement, so that the planner sees when the
// index of the dead ones will do.
func inStates(states []State) string {
	if len(states) == 0 {
		return ""
	}
	var in []string
	for _, s := range []State{Dead, Parked, Due, Replayed, Processed, Discarded} { // and nothing that a caller could make up
		if slices.Contains(states, s) {
			in = append(in, "'"+string(s)+"'")
		}
	}
	switch len(in) {
	case 0:
		return " AND false"
	case 1:
		return " AND state = " + in[0]
	}
	return " AND state IN (" + strings.Join(in, ", ") + ")"
}

// Filter chooses dead letters; what is empty chooses all.
type Filter struct {
	Owner, Type, Topic string // the slot, or the consumer
	Aggregate          string // record key
	Reason             Reason
	Since, Until       time.Time // when it became one; Until itself is not in it
	ID                 string    // message id
	Letters            []int64   // ids of dead letters
	States             []State
}

// where is Where for the relay's table.
func (f Filter) where() (string, []any) { return f.Where("slot", []byte(f.ID)) }

// Where returns the condition and its arguments. The column owner holds what Owner
// names, and id is ID in the type of the column message_id.
func (f Filter) Where(owner string, id any) (string, []any) {
	var b strings.Builder
	var args []any
	and := func(condition string, arg any) {
		args = append(args, arg)
		b.WriteString(" AND " + strings.ReplaceAll(condition, "$", parameter(len(args))))
	}
	b.WriteString("true" + inStates(f.States))
	equal := func(column, value string, arg any) {
		if value != "" {
			and(column+" = $", arg)
		}
	}
	equal(owner, f.Owner, f.Owner)
	equal("type", f.Type, f.Type)
	equal("topic", f.Topic, f.Topic)
	equal("reason", string(f.Reason), string(f.Reason))
	equal("record_key", f.Aggregate, []byte(f.Aggregate))
	equal("message_id", f.ID, id)
	if !f.Since.IsZero() {
		and("created_at >= "+Moment("$"), f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		and("created_at < "+Moment("$"), f.Until.UnixMicro())
	}
	if len(f.Letters) > 0 {
		and("id = ANY ($)", f.Letters)
	}
	return b.String(), args
}

// List returns dead letters without values, in the order of their ids: the first limit
// of those after that id.
func List(ctx context.Context, db *catalog.DB, f Filter, limit int, after int64) ([]Letter, error) {
	where, args := f.where()
	n := len(args)
	sql := "SELECT " + columns + " FROM public.cdc_relay_dead_letter WHERE " + where +
		" AND id > " + parameter(n+1) + " ORDER BY id LIMIT " + parameter(n+2)
	scan := func(row pgx.CollectableRow) (Letter, error) {
		var l Letter
		err := l.scan(row)
		return l, err
	}
	return query(ctx, db, 0, "list the dead letters", scan, sql, append(args, after, limit)...)
}

// Count counts what [List] returns in all.
func Count(ctx context.Context, db *catalog.DB, f Filter) (int64, error) {
	where, args := f.where()
	sql := "SELECT count(*) FROM public.cdc_relay_dead_letter WHERE " + where
	got, err := query(ctx, db, 0, "count the dead letters", pgx.RowTo[int64], sql, args...)
	if err != nil {
		return 0, err
	}
	return got[0], nil
}
