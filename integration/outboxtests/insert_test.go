package outboxtests

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// full is an event that uses every field.
func full(number string) outbox.Event {
	return outbox.Event{
		AggregateType: "order", AggregateID: number, AggregateVersion: 3, Type: "OrderPlaced", SchemaVersion: "2",
		CorrelationID: "c-1", CausationID: "c-0", Payload: []byte(`{"number": "` + number + `", "note": "a\\b <&> €"}`),
		Headers: map[string]string{"tenant": `ac"me <&>`},
	}
}

const columns = `concat_ws('|', aggregatetype, aggregateid, aggregateversion, type, schemaversion, correlationid,
	causationid, payload->>'number', payload->>'note', headers->>'tenant')`

// Each function writes the same row, whatever way pgx sends statements in.
func TestInsertWritesTheRow(t *testing.T) {
	const row = `order|42|3|OrderPlaced|2|c-1|c-0|42|a\b <&> €|ac"me <&>`
	env := newEnv(t, testenv.NoKafka())
	check := func(t *testing.T, id string, err error) {
		t.Helper()
		must(t, err)
		want(t, env, row, "SELECT "+columns+" FROM outbox WHERE id = $1", id)
		env.Exec("DELETE FROM outbox")
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			tx := beginMode(t, env, mode)
			id, err := outbox.Insert(t.Context(), tx, full("42"))
			must(t, err)
			check(t, id, tx.Commit(t.Context()))
		})
	}
	t.Run("database/sql", func(t *testing.T) {
		tx := beginSQL(t, env)
		id, err := outbox.InsertSQL(t.Context(), tx, full("42"))
		must(t, err)
		check(t, id, tx.Commit())
	})
	t.Run("given id", func(t *testing.T) {
		e := full("42")
		e.ID = outbox.NewID()
		tx := begin(t, env)
		id, err := outbox.Insert(t.Context(), tx, e)
		must(t, err)
		if id != e.ID {
			t.Errorf("the id is %s, not %s", id, e.ID)
		}
		check(t, id, tx.Commit(t.Context()))
	})
}

// What is left out is NULL, and the headers, which no value needs, too.
func TestInsertLeavesOut(t *testing.T) {
	env := newEnv(t, testenv.NoKafka())
	tx := begin(t, env)
	_, err := outbox.Insert(t.Context(), tx, outbox.Event{AggregateType: "order", Type: "OrderClosed"})
	must(t, err)
	must(t, tx.Commit(t.Context()))
	want(t, env, "7", `SELECT num_nulls(aggregateid, payload, headers, aggregateversion, correlationid, causationid, schemaversion) FROM outbox`)
}

// A column that no event fills may have been dropped.
func TestInsertWithoutDroppedColumns(t *testing.T) {
	env := newEnv(t, testenv.NoKafka())
	env.Exec(`ALTER TABLE outbox DROP headers, DROP aggregateversion, DROP correlationid, DROP causationid, DROP schemaversion, DROP created_at, DROP seq`)
	tx := begin(t, env)
	_, err := outbox.Insert(t.Context(), tx, outbox.Event{AggregateType: "order", Type: "OrderClosed", Payload: []byte(`1`)})
	must(t, err)
	must(t, tx.Commit(t.Context()))
	want(t, env, "1", "SELECT count(*) FROM outbox")
}

// Many events keep their order, over more than one statement, and a role that may only insert can write them.
func TestInsertMany(t *testing.T) {
	const n = 2345
	env := newEnv(t, testenv.NoKafka())
	role := strings.TrimSuffix(env.Prefix, ".") + "_writer"
	env.Exec("CREATE ROLE " + role)
	defer env.Exec("DROP OWNED BY " + role + "; DROP ROLE " + role)
	env.Exec("GRANT INSERT ON outbox TO " + role)
	events := make([]outbox.Event, n)
	for i := range events {
		events[i] = outbox.Event{AggregateType: "order", AggregateID: "1", Type: "OrderChanged", Payload: fmt.Append(nil, i)}
		if i%2 == 1 {
			events[i].AggregateVersion = int64(i)
		}
	}
	writers := map[string]func(t *testing.T) []string{
		"pgx": func(t *testing.T) []string {
			tx := begin(t, env)
			_, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+role)
			must(t, err)
			ids, err := outbox.InsertMany(t.Context(), tx, events)
			must(t, err)
			must(t, tx.Commit(t.Context()))
			return ids
		},
		"database/sql": func(t *testing.T) []string {
			tx := beginSQL(t, env)
			_, err := tx.ExecContext(t.Context(), "SET LOCAL ROLE "+role)
			must(t, err)
			ids, err := outbox.InsertManySQL(t.Context(), tx, events)
			must(t, err)
			must(t, tx.Commit())
			return ids
		},
	}
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			ids := write(t)
			want(t, env, fmt.Sprint(n), `SELECT count(*) FROM (SELECT id, payload::text, coalesce(aggregateversion, 0),
					row_number() OVER (ORDER BY seq) - 1 AS at FROM outbox) o
				JOIN unnest($1::uuid[]) WITH ORDINALITY AS u (id, n) USING (id)
				WHERE o.at = u.n - 1 AND o.payload = o.at::text AND o.coalesce = CASE WHEN o.at % 2 = 1 THEN o.at ELSE 0 END`, ids)
			env.Exec("DELETE FROM outbox")
		})
	}
	t.Run("none", func(t *testing.T) {
		ids, err := outbox.InsertMany(t.Context(), begin(t, env), nil)
		if err != nil || len(ids) != 0 {
			t.Errorf("%v, %v", ids, err)
		}
	})
}

// The event shares the fate of the change, and a refused one leaves the transaction usable.
func TestInsertBelongsToTheTransaction(t *testing.T) {
	env := newEnv(t, testenv.NoKafka())
	env.Exec("CREATE TABLE orders (number text PRIMARY KEY)")
	ctx := t.Context()

	tx := begin(t, env)
	_, err := tx.Exec(ctx, "INSERT INTO orders VALUES ('1')")
	must(t, err)
	_, err = outbox.Insert(ctx, tx, full("1"))
	must(t, err)
	must(t, tx.Rollback(ctx))
	want(t, env, "0", "SELECT count(*) FROM outbox")

	tx = begin(t, env)
	_, err = tx.Exec(ctx, "INSERT INTO orders VALUES ('1')")
	must(t, err)
	forged := full("1")
	forged.Headers["id"] = "x"
	if _, err = outbox.Insert(ctx, tx, forged); !errors.Is(err, outbox.ErrInvalid) {
		t.Fatalf("got %v, want ErrInvalid", err)
	}
	_, err = outbox.Insert(ctx, tx, full("1"))
	must(t, err)
	must(t, tx.Commit(ctx))
	want(t, env, "1", "SELECT count(*) FROM outbox o JOIN orders ON number = aggregateid")

	// What Postgres refuses is its error, without the payload.
	tx = begin(t, env)
	bad := full("2")
	bad.Payload = []byte("s3cret, and no JSON")
	_, err = outbox.Insert(ctx, tx, bad)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "22P02" || errors.Is(err, outbox.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

// The payload reaches any type of column byte for byte, in every mode.
func TestInsertKeepsPayloadBytes(t *testing.T) {
	env := testenv.New(t, testenv.NoKafka())
	env.Exec(`CREATE SCHEMA "Sales"`)
	payload := `{"b":1, "a" : "\\x41 \u20ac '' $1"}`
	for _, kind := range []string{"json", "text", "bytea"} {
		env.Exec(fmt.Sprintf(`CREATE TABLE "Sales"."out ""%s" ("event id" text PRIMARY KEY, kind text, topic text, "Body" %s, trace text)`, kind, kind))
		writer, err := outbox.New(outbox.Config{Table: `"Sales"."out ""` + kind + `"`, Columns: map[string]string{
			"id": "event id", "type": "kind", "aggregatetype": "topic", "aggregateid": "", "payload": "Body", "headers": "",
			"traceparent": "trace",
		}})
		must(t, err)
		e := outbox.Event{ID: "any text", AggregateType: "order", Type: "OrderPlaced", Payload: []byte(payload)}
		stored := `"Body"::text`
		if kind == "bytea" {
			stored = `convert_from("Body", 'UTF8')`
		}
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
			tx := beginMode(t, env, mode)
			_, err := writer.Insert(t.Context(), tx, e)
			must(t, err)
			must(t, tx.Commit(t.Context()))
			want(t, env, payload, "SELECT "+stored+" FROM "+writer.Table())
			env.Exec("DELETE FROM " + writer.Table())
		}
		tx := beginSQL(t, env)
		_, err = writer.InsertSQL(t.Context(), tx, e)
		must(t, err)
		must(t, tx.Commit())
		want(t, env, payload, "SELECT "+stored+" FROM "+writer.Table())
	}
}
