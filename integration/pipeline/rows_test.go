package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const insert = `INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ($1, $2, $3, $4)`

// numbers inserts rows n with aggregate id k and payload {"n": n}.
func numbers(env *testenv.Env, from, to int) {
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
		SELECT 'order', 'k', 'T', jsonb_build_object('n', g) FROM generate_series($1::int, $2::int) g`, from, to)
}

// counted is what numbers gives.
func counted(from, to int) []string {
	var out []string
	for n := from; n <= to; n++ {
		out = append(out, fmt.Sprintf(`{"n": %d}`, n))
	}
	return out
}

// settledAt waits until everything committed before is confirmed.
func settledAt(t *testing.T, env *testenv.Env) {
	t.Helper()
	target := env.Text(`SELECT pg_current_wal_insert_lsn()`)
	untilTrue(t, env, fmt.Sprintf(`SELECT confirmed_flush_lsn >= '%s'::pg_lsn - 40 FROM pg_replication_slots WHERE slot_name = '%s'`, target, env.Slot))
}

// What the columns hold is what the record's value is, byte for byte.
func TestValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, column, literal, want string }{
		{"json keeps its spelling", "json", `'{"b":1,  "a":2e1,"h":"<&>","big":123456789012345678901234567890.1}'`, `{"b":1,  "a":2e1,"h":"<&>","big":123456789012345678901234567890.1}`},
		{"jsonb as the server writes it", "jsonb", `'{"n":9007199254740993, "x":1e3}'`, `{"n": 9007199254740993, "x": 1000}`},
		{"json array", "jsonb", `'[1, 2]'`, `[1, 2]`},
		{"json null is a value", "jsonb", `'null'`, `null`},
		{"text", "text", `E'\\x00ff, not hex'`, `\x00ff, not hex`},
		{"text of other alphabets", "text", `'žluťoučký 🐎'`, `žluťoučký 🐎`},
		{"empty text", "text", `''`, ``},
		{"bytea raw", "bytea", `'\x00ff10'`, "\x00\xff\x10"},
		{"empty bytea", "bytea", `''`, ``},
		{"large and compressed on disk", "text", `repeat('0123456789', 70000)`, strings.Repeat("0123456789", 70000)},
		{"enum", "mood", `'fine'`, `fine`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env := testenv.New(t)
			topic := env.CreateTopic("v", 1)
			env.Exec(`CREATE TYPE mood AS ENUM ('fine')`)
			env.Exec(`CREATE TABLE public.outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, payload ` + c.column + `)`)
			r := start(t, env, nil)
			env.Exec(`INSERT INTO public.outbox VALUES (1, 'v', 'k', ` + c.literal + `), (2, 'v', 'k', NULL)`)
			got := env.Consume(topic, 2, patience)
			if string(got[0].Value) != c.want || got[0].Value == nil {
				t.Errorf("got value %.100q, want %.100q", got[0].Value, c.want)
			}
			if got[1].Value != nil {
				t.Errorf("NULL arrives as %q, want a tombstone", got[1].Value)
			}
			stop(t, r)
		})
	}
}

// Keys, headers and time of a row with everything in it, and of one with nothing in it.
func TestKeyHeadersAndTime(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 3)
	env.Exec(`CREATE TABLE public.outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb,
		headers json, correlationid text, "Tenant Id" int, traceparent text)`)
	r := start(t, env, testenv.Settings{
		"outbox.header_columns": map[string]string{"tenant": "Tenant Id"},
		"routing.key":           "{aggregateid}",
	})
	const id = "0192e6a0-0000-7000-8000-000000000001"
	before := time.Now()
	env.Exec(`INSERT INTO public.outbox VALUES ('` + id + `', 'order', 'o-7', 'Placed', '{}',
		'{"plain": "s", "number": 1.50, "nested": {"a":[1]}, "id": "forged", "cdc-relay-position": "forged"}', 'c-1', 42, '00-ab-cd-01')`)
	env.Exec(`INSERT INTO public.outbox VALUES ('0192e6a0-0000-7000-8000-000000000002', 'order', NULL, NULL, NULL, '[1]', NULL, NULL, NULL),
		('0192e6a0-0000-7000-8000-000000000003', 'order', '', 'x', '{}', NULL, NULL, NULL, NULL)`)
	byID := map[string]testenv.Record{}
	for _, rec := range env.Consume(topic, 3, patience) {
		name, _ := rec.Header("id")
		byID[name[len(name)-1:]] = rec
	}
	full := byID["1"]
	for name, want := range map[string]string{
		"id": id, "type": "Placed", "content-type": "application/json", "plain": "s", "number": "1.50",
		"nested": `{"a":[1]}`, "correlationid": "c-1", "tenant": "42", "traceparent": "00-ab-cd-01",
	} {
		if got, _ := full.Header(name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if p, _ := full.Header("cdc-relay-position"); len(strings.Split(p, ".")) != 10 {
		t.Errorf("position is %q: forged, or not of ten parts", p)
	}
	if got := full.Time; got.Before(before.Add(-5*time.Second)) || got.After(time.Now().Add(5*time.Second)) {
		t.Errorf("record time is %v, committed about %v", got, before)
	}
	if bare := byID["2"]; bare.Key != nil || bare.Value != nil {
		t.Errorf("a row of NULLs has key %q and value %q", bare.Key, bare.Value)
	}
	if empty := byID["3"]; empty.Key == nil || len(empty.Key) != 0 {
		t.Errorf("an empty aggregate id has key %v, want an empty one", empty.Key)
	}
	_, metrics, err := r.Get(t.Context(), "/metrics")
	if err != nil || !strings.Contains(metrics, `cdc_relay_headers_dropped_total{reason="reserved"} 2`) ||
		!strings.Contains(metrics, `cdc_relay_headers_dropped_total{reason="malformed"} 1`) {
		t.Errorf("dropped headers are not counted (%v)", err)
	}
	stop(t, r)
}

// Topic and key come from templates over any field, and several tables share one slot.
func TestTemplatesAndSeveralTables(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	sales, billing := env.CreateTopic("sales-order", 1), env.CreateTopic("billing-invoice", 1)
	env.Exec(`CREATE SCHEMA "Sales"`)
	ddl := `(key text PRIMARY KEY, kind text, subject text, body text, region text)`
	env.Exec(`CREATE TABLE "Sales"."Outbox" ` + ddl)
	env.Exec(`CREATE TABLE billing_outbox ` + ddl)
	r := start(t, env, testenv.Settings{
		"outbox.table":   []string{`"Sales"."Outbox"`, "Billing_Outbox"},
		"outbox.columns": map[string]string{"id": "key", "aggregatetype": "kind", "aggregateid": "subject", "payload": "body", "region": "region"},
		"routing.topic":  env.Prefix + "{region}-{aggregatetype}",
		"routing.key":    "{region}:{aggregateid}",
	})
	env.Exec(`INSERT INTO "Sales"."Outbox" VALUES ('1', 'order', 'o', 'a', 'sales')`)
	env.Exec(`INSERT INTO billing_outbox VALUES ('2', 'invoice', 'i', 'b', 'billing')`)
	if got := env.Consume(sales, 1, patience)[0]; string(got.Key) != "sales:o" || string(got.Value) != "a" {
		t.Errorf("got key %q, value %q", got.Key, got.Value)
	}
	if got := env.Consume(billing, 1, patience)[0]; string(got.Key) != "billing:i" || string(got.Value) != "b" {
		t.Errorf("got key %q, value %q", got.Key, got.Value)
	}
	stop(t, r)

	// A table joins the list while the slot lives on.
	env.Exec(`CREATE TABLE third ` + ddl)
	r = start(t, env, testenv.Settings{
		"outbox.table":   []string{`"Sales"."Outbox"`, "Billing_Outbox", "third"},
		"outbox.columns": map[string]string{"id": "key", "aggregatetype": "kind", "aggregateid": "subject", "payload": "body", "region": "region"},
		"routing.topic":  env.Prefix + "{region}-{aggregatetype}",
		"routing.key":    "{region}:{aggregateid}",
	})
	env.Exec(`INSERT INTO third VALUES ('3', 'order', 'o', 'c', 'sales')`)
	if got := scene.Values(env.Consume(sales, 2, patience)); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("got %q after a table was added, want a and c", got)
	}
	stop(t, r)
}

// Rows of a partitioned table arrive under the root's name, also from a partition that is made later.
func TestPartitionedTable(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	env.Exec(`CREATE TABLE public.outbox (id int, aggregatetype text, aggregateid text, payload text, day int) PARTITION BY LIST (day)`)
	env.Exec(`CREATE TABLE outbox_1 PARTITION OF public.outbox FOR VALUES IN (1)`)
	r := start(t, env, nil)
	env.Exec(`INSERT INTO public.outbox VALUES (1, 'order', 'k', 'one', 1)`)
	env.Exec(`CREATE TABLE outbox_2 PARTITION OF public.outbox FOR VALUES IN (2)`)
	env.Exec(`INSERT INTO public.outbox VALUES (2, 'order', 'k', 'two', 2), (3, 'order', 'k', 'three', 1)`)
	env.Exec(`DROP TABLE outbox_1`)
	env.Exec(`INSERT INTO public.outbox VALUES (4, 'order', 'k', 'four', 2)`)
	want := []string{"one", "two", "three", "four"}
	if got := scene.Values(env.Consume(topic, 4, patience)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	stop(t, r)
}
