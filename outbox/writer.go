package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// perStatement bounds the events of one statement. Postgres takes 65,535 parameters, and a row has at most 13.
const perStatement = 1000

// order is that of the columns in a statement.
var order = []string{
	fieldID, fieldAggregateType, fieldAggregateID, fieldType, fieldPayload, fieldHeaders, fieldAggregateVersion,
	fieldCorrelationID, fieldCausationID, fieldSchemaVersion, fieldTraceparent, fieldTracestate, fieldBaggage,
}

// Config says where a [Writer] writes.
type Config struct {
	// Table is the outbox, written as in outbox.table of the relay: "outbox" or "sales.outbox"; the schema is public when
	// it is left out, and names are folded to lower case unless they stand in double quotes. Default: public.outbox.
	Table string
	// Columns gives the columns of fields whose columns have other names, as outbox.columns of the relay does. "" says
	// that the table has no column for the field; one of id and payload is needed. Columns for traceparent, tracestate
	// and baggage are used only when they are named here; otherwise trace context goes into the headers.
	Columns map[string]string
	// HeaderColumns are the names of headers that the relay fills from columns (outbox.header_columns): events may not
	// set them.
	HeaderColumns []string
	// OwnContentType lets events set the header content-type. Set it where the payload is text or bytea and there is no
	// column contenttype; in all other cases the relay sets the header and drops an event's own.
	OwnContentType bool
}

// Writer writes events into one table. It may be used from any goroutine.
type Writer struct {
	table          pgx.Identifier
	columns        map[string]string // by field; no entry or "": the table has none
	more           []string
	ownContentType bool
}

// New returns a writer for the table, and an error when the names make no sense. It does not look at the database.
func New(cfg Config) (*Writer, error) {
	w := Default()
	w.more, w.ownContentType = slices.Clone(cfg.HeaderColumns), cfg.OwnContentType
	if cfg.Table != "" {
		var err error
		if w.table, err = parseTable(cfg.Table); err != nil {
			return nil, err
		}
	}
	for _, field := range slices.Sorted(maps.Keys(cfg.Columns)) {
		column := cfg.Columns[field]
		switch {
		case !slices.Contains(order, field):
			return nil, fmt.Errorf("columns: no field is called %q; there are %s", field, strings.Join(order, ", "))
		case !storable(column):
			return nil, fmt.Errorf("columns: the name for %s is no text that Postgres stores", field)
		case column == "" && (field == fieldID || field == fieldPayload):
			return nil, fmt.Errorf("columns: %s needs a column", field)
		}
		w.columns[field] = column
	}
	if err := w.shared(); err != nil {
		return nil, err
	}
	return w, nil
}

// ownNames gives each field the column of its name. Those of trace context are not in the table of the migrations.
func (w *Writer) ownNames() {
	for _, field := range order {
		w.columns[field] = field
	}
	for _, field := range []string{fieldTraceparent, fieldTracestate, fieldBaggage} {
		w.columns[field] = ""
	}
}

// shared returns an error when two fields have the same column.
func (w *Writer) shared() error {
	seen := map[string]string{}
	for _, field := range order {
		column := w.columns[field]
		if other, twice := seen[column]; twice && column != "" {
			return fmt.Errorf("columns: %s and %s share the column %q", other, field, column)
		}
		seen[column] = field
	}
	return nil
}

// Table returns the name of the table, quoted for SQL.
func (w *Writer) Table() string { return w.table.Sanitize() }

// Column returns the column of a field, not quoted; "" when the table has none.
func (w *Writer) Column(field string) string { return w.columns[field] }

// Insert writes an event in the caller's transaction and returns its id. The event becomes a record if, and only if,
// the transaction commits. An error that wraps [ErrInvalid] leaves the transaction usable; any other is Postgres', which
// has aborted the transaction.
func (w *Writer) Insert(ctx context.Context, tx pgx.Tx, e Event) (id string, err error) {
	ids, err := w.InsertMany(ctx, tx, []Event{e})
	if err != nil {
		return "", err
	}
	return ids[0], nil
}

// InsertSQL is [Writer.Insert] for database/sql, with a driver that hands []byte to a json column as it is. pgx/stdlib
// does, except in its modes exec and simple_protocol: Postgres refuses the payload there.
func (w *Writer) InsertSQL(ctx context.Context, tx *sql.Tx, e Event) (id string, err error) {
	ids, err := w.InsertManySQL(ctx, tx, []Event{e})
	if err != nil {
		return "", err
	}
	return ids[0], nil
}

// InsertMany writes events in the caller's transaction, in their order, with one statement for each thousand, and
// returns their ids. All are checked before the first is written. Errors are those of [Writer.Insert].
func (w *Writer) InsertMany(ctx context.Context, tx pgx.Tx, events []Event) (ids []string, err error) {
	return w.insert(ctx, events, func(text string, args []any) error {
		_, err := tx.Exec(ctx, text, append(mode(tx, len(events)), args...)...)
		return err
	})
}

// InsertManySQL is [Writer.InsertMany] for database/sql; see [Writer.InsertSQL].
func (w *Writer) InsertManySQL(ctx context.Context, tx *sql.Tx, events []Event) (ids []string, err error) {
	return w.insert(ctx, events, func(text string, args []any) error {
		_, err := tx.ExecContext(ctx, text, args...)
		return err
	})
}

// mode chooses how pgx sends a statement of n events. The payload is bytes whose meaning follows from the type of its
// column, so the server must be asked for that; exec and simple_protocol do not ask, and would send a json column the
// text form of a bytea. A statement of many events is not worth a place in the cache of prepared ones: the next has
// another length. Within a transaction this holds behind a pooler as well.
func mode(tx pgx.Tx, n int) []any {
	conn := tx.Conn()
	if conn == nil {
		return nil
	}
	switch conn.Config().DefaultQueryExecMode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		return []any{pgx.QueryExecModeDescribeExec}
	}
	if n > 1 {
		return []any{pgx.QueryExecModeDescribeExec}
	}
	return nil
}

func (w *Writer) insert(ctx context.Context, events []Event, exec func(text string, args []any) error) ([]string, error) {
	trace := traceOf(ctx)
	ids, rows := make([]string, len(events)), make([]row, len(events))
	for i, e := range events {
		if e.ID == "" {
			e.ID = NewID()
		}
		var err error
		if rows[i], err = w.row(&e, trace); err != nil {
			if len(events) > 1 {
				err = fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
			}
			return nil, err
		}
		ids[i] = e.ID
	}
	for part := range slices.Chunk(rows, perStatement) {
		text, args := w.statement(part)
		if err := exec(text, args); err != nil {
			return nil, fmt.Errorf("insert into %s: %w", w.Table(), err)
		}
	}
	return ids, nil
}

// statement returns the insert of rows. Columns that none of them fills are not named: they may have been dropped.
func (w *Writer) statement(rows []row) (text string, args []any) {
	var fields, columns []string
	for _, field := range order {
		if slices.ContainsFunc(rows, func(r row) bool { _, ok := r[field]; return ok }) {
			fields, columns = append(fields, field), append(columns, pgx.Identifier{w.columns[field]}.Sanitize())
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "INSERT INTO %s (%s) VALUES ", w.Table(), strings.Join(columns, ", "))
	for i, r := range rows {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("(")
		for j, field := range fields {
			if j > 0 {
				b.WriteString(", ")
			}
			args = append(args, r[field])
			b.WriteString("$" + strconv.Itoa(len(args)))
		}
		b.WriteString(")")
	}
	return b.String(), args
}
