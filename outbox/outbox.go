// Package outbox writes events into an outbox table, in the transaction of the change that they tell of. cdc-relay
// publishes them when, and only if, that transaction commits; there is nothing else to call.
//
//	tx, err := pool.Begin(ctx)
//	…
//	_, err = tx.Exec(ctx, "INSERT INTO orders …")
//	…
//	_, err = outbox.Insert(ctx, tx, outbox.Event{
//		AggregateType: "order", AggregateID: "42", Type: "OrderPlaced", Payload: payload,
//	})
//	…
//	err = tx.Commit(ctx)
//
// Events go in through a transaction only: a pool or a connection does not compile. The functions of the package write
// to the table of the relay's migrations, public.outbox; [New] makes a [Writer] for another one.
//
// Trace context (the W3C's traceparent, tracestate, baggage) is taken from the context, as OpenTelemetry keeps it
// there, so that the consumer's spans belong to the trace of the request.
//
// Rows may be deleted at any time, even in the transaction that has inserted them: the relay reads the write-ahead log.
package outbox

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
)

// standard writes to the table of the migrations.
var standard = Default()

// Default returns the writer that the functions of the package use, for public.outbox.
func Default() *Writer {
	w := &Writer{table: pgx.Identifier{"public", "outbox"}, columns: map[string]string{}}
	w.ownNames()
	return w
}

// Insert is [Writer.Insert] into public.outbox.
func Insert(ctx context.Context, tx pgx.Tx, e Event) (id string, err error) {
	return standard.Insert(ctx, tx, e)
}

// InsertSQL is [Writer.InsertSQL] into public.outbox.
func InsertSQL(ctx context.Context, tx *sql.Tx, e Event) (id string, err error) {
	return standard.InsertSQL(ctx, tx, e)
}

// InsertMany is [Writer.InsertMany] into public.outbox.
func InsertMany(ctx context.Context, tx pgx.Tx, events []Event) (ids []string, err error) {
	return standard.InsertMany(ctx, tx, events)
}

// InsertManySQL is [Writer.InsertManySQL] into public.outbox.
func InsertManySQL(ctx context.Context, tx *sql.Tx, events []Event) (ids []string, err error) {
	return standard.InsertManySQL(ctx, tx, events)
}
