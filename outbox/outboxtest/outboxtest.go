// Package outboxtest asserts what a transaction has written into its outbox, for the tests of an application on its own
// database.
//
//	tx, err := pool.Begin(ctx)
//	…
//	err = orders.Place(ctx, tx, order)
//	…
//	outboxtest.RequireInserted(t, tx, outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPlaced"})
//
// It sees what the transaction has inserted and not deleted, also after savepoints, and nothing of other transactions,
// so tests may share a database and roll back at their end.
package outboxtest

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Inserted returns the events that the transaction has inserted into public.outbox, in their order.
func Inserted(t testing.TB, tx pgx.Tx) []outbox.Event {
	t.Helper()
	return InsertedBy(t, tx, outbox.Default())
}

// InsertedSQL is [Inserted] for database/sql.
func InsertedSQL(t testing.TB, tx *sql.Tx) []outbox.Event {
	t.Helper()
	return InsertedBySQL(t, tx, outbox.Default())
}

// InsertedBy is [Inserted] for the table of a writer. The order is that of a column called seq, or else that of the
// statements.
func InsertedBy(t testing.TB, tx pgx.Tx, w *outbox.Writer) []outbox.Event {
	t.Helper()
	var text string
	if err := tx.QueryRow(t.Context(), query(w)).Scan(&text); err != nil {
		t.Fatalf("read %s: %v", w.Table(), err)
	}
	return decode(t, w, text)
}

// InsertedBySQL is [InsertedBy] for database/sql.
func InsertedBySQL(t testing.TB, tx *sql.Tx, w *outbox.Writer) []outbox.Event {
	t.Helper()
	var text string
	if err := tx.QueryRowContext(t.Context(), query(w)).Scan(&text); err != nil {
		t.Fatalf("read %s: %v", w.Table(), err)
	}
	return decode(t, w, text)
}

// RequireInserted ends the test unless the transaction has inserted exactly these events into public.outbox, in this
// order. Fields that an expected event leaves out may have any value, and so may headers that it does not name.
// Payloads are compared as JSON when both are, and a message of a failing test shows them.
func RequireInserted(t testing.TB, tx pgx.Tx, want ...outbox.Event) {
	t.Helper()
	Require(t, Inserted(t, tx), want...)
}

// RequireInsertedSQL is [RequireInserted] for database/sql.
func RequireInsertedSQL(t testing.TB, tx *sql.Tx, want ...outbox.Event) {
	t.Helper()
	Require(t, InsertedSQL(t, tx), want...)
}

// Require compares events, those of [InsertedBy] say, as [RequireInserted] does.
func Require(t testing.TB, got []outbox.Event, want ...outbox.Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("the transaction has inserted %d events, not %d: %s", len(got), len(want), kinds(got))
	}
	for i := range want {
		if diff := difference(got[i], want[i]); diff != "" {
			t.Fatalf("event %d of %d, %s: %s", i+1, len(want), kinds(got[i:i+1]), diff)
		}
	}
}
