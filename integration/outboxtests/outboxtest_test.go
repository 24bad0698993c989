package outboxtests

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outbox/outboxtest"
)

// types names events in their order.
func types(events []outbox.Event) string {
	var names []string
	for _, e := range events {
		names = append(names, e.Type)
	}
	return strings.Join(names, " ")
}

func event(kind string) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: "1", Type: kind, Payload: []byte(`{"kind": "` + kind + `"}`)}
}

// Exactly what this transaction has inserted, and what its savepoints have kept.
func TestInsertedSeesOwnRowsOnly(t *testing.T) {
	env := newEnv(t, testenv.NoKafka())
	ctx := t.Context()
	commit := func(kind string) {
		other := begin(t, env)
		_, err := outbox.Insert(ctx, other, event(kind))
		must(t, err)
		must(t, other.Commit(ctx))
	}
	commit("before")
	tx := begin(t, env)
	seen := func(expected string) {
		t.Helper()
		if got := types(outboxtest.Inserted(t, tx)); got != expected {
			t.Errorf("got %q, want %q", got, expected)
		}
	}
	seen("")

	_, err := outbox.InsertMany(ctx, tx, []outbox.Event{event("one"), event("two")})
	must(t, err)
	commit("meanwhile") // visible to the next statement, and younger
	seen("one two")

	kept, err := tx.Begin(ctx)
	must(t, err)
	_, err = outbox.Insert(ctx, kept, event("kept"))
	must(t, err)
	seen("one two kept")
	must(t, kept.Commit(ctx))
	undone, err := tx.Begin(ctx)
	must(t, err)
	_, err = outbox.Insert(ctx, undone, event("undone"))
	must(t, err)
	must(t, undone.Rollback(ctx))
	commit("later")
	seen("one two kept")

	_, err = tx.Exec(ctx, "DELETE FROM outbox WHERE type IN ('one', 'before')")
	must(t, err)
	seen("two kept")
}

// What was written is read back, from the table of the migrations and from another, by pgx and by database/sql.
func TestInsertedReadsWhatWasWritten(t *testing.T) {
	env := newEnv(t, testenv.NoKafka())
	env.Exec(`CREATE TABLE "other" ("it's" text PRIMARY KEY, kind text, aggregatetype text, body bytea, headers text)`)
	other, err := outbox.New(outbox.Config{Table: "other", Columns: map[string]string{"id": "it's", "type": "kind", "payload": "body", "aggregateid": ""}})
	must(t, err)
	e := full("42")
	e.ID = outbox.NewID()
	e.Payload = []byte(`{"note":"x"}`)
	foreign := outbox.Event{ID: "x", AggregateType: "order", Type: "OrderPlaced", Payload: []byte{0, 1, 0xff}, Headers: map[string]string{"a": "b"}}

	tx := begin(t, env)
	_, err = outbox.Insert(t.Context(), tx, e)
	must(t, err)
	_, err = other.Insert(t.Context(), tx, foreign)
	must(t, err)
	spaced := e
	spaced.Payload = []byte(`{"note": "x"}`) // as jsonb spells it
	same(t, outboxtest.Inserted(t, tx), spaced)
	same(t, outboxtest.InsertedBy(t, tx, other), foreign)
	must(t, tx.Rollback(t.Context()))

	again := beginSQL(t, env)
	_, err = outbox.InsertSQL(t.Context(), again, e)
	must(t, err)
	_, err = other.InsertSQL(t.Context(), again, foreign)
	must(t, err)
	outboxtest.RequireInsertedSQL(t, again, e)
	same(t, outboxtest.InsertedBySQL(t, again, other), foreign)
}

// same compares all fields, also those that are empty.
func same(t *testing.T, got []outbox.Event, want outbox.Event) {
	t.Helper()
	if !reflect.DeepEqual(got, []outbox.Event{want}) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Each way in which events can be others than expected ends the test, and the message says how.
func TestRequireInserted(t *testing.T) {
	env := newEnv(t, testenv.NoKafka())
	tx := begin(t, env)
	_, err := outbox.InsertMany(t.Context(), tx, []outbox.Event{full("1"), event("OrderShipped")})
	must(t, err)
	first := outbox.Event{Type: "OrderPlaced"}
	second := outbox.Event{Type: "OrderShipped", Payload: []byte(`{ "kind" : "OrderShipped" }`)}
	with := func(change func(*outbox.Event)) []outbox.Event {
		e := first
		change(&e)
		return []outbox.Event{e, second}
	}
	for says, events := range map[string][]outbox.Event{
		"":                          {first, second},
		"2 events, not 1":           {first},
		"2 events, not 0":           nil,
		"event 1 of 2":              {second, first},
		`not "nobody"`:              with(func(e *outbox.Event) { e.CausationID = "nobody" }),
		"aggregateversion is 3":     with(func(e *outbox.Event) { e.AggregateVersion = 4 }),
		"header tenant":             with(func(e *outbox.Event) { e.Headers = map[string]string{"tenant": "other"} }),
		"header other":              with(func(e *outbox.Event) { e.Headers = map[string]string{"other": ""} }),
		`not {"number": 1}`:         with(func(e *outbox.Event) { e.Payload = []byte(`{"number": 1}`) }),
		`aggregateid is "1", not "`: with(func(e *outbox.Event) { e.AggregateID = "2" }),
	} {
		t.Run(fmt.Sprintf("%q", says), func(t *testing.T) {
			got := failure(t, func(t testing.TB) { outboxtest.RequireInserted(t, tx, events...) })
			if (got == "") != (says == "") || !strings.Contains(got, says) {
				t.Errorf("it ends with %q, want %q", got, says)
			}
		})
	}
}
