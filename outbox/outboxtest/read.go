package outboxtest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// fields are those of outbox.Event that are columns of text, with their place in it.
var fields = []struct {
	name string
	of   func(*outbox.Event) *string
}{
	{"id", func(e *outbox.Event) *string { return &e.ID }},
	{"aggregatetype", func(e *outbox.Event) *string { return &e.AggregateType }},
	{"aggregateid", func(e *outbox.Event) *string { return &e.AggregateID }},
	{"type", func(e *outbox.Event) *string { return &e.Type }},
	{"schemaversion", func(e *outbox.Event) *string { return &e.SchemaVersion }},
	{"correlationid", func(e *outbox.Event) *string { return &e.CorrelationID }},
	{"causationid", func(e *outbox.Event) *string { return &e.CausationID }},
}

// traceFields go into the headers, wherever the table has them.
var traceFields = []string{"traceparent", "tracestate", "baggage"}

// query returns one statement with one text as its result, which is the same for every driver: an array of objects,
// the row's columns, its payload as text, and the payload's type.
//
// Which rows are the transaction's own: those that carry its xid. A savepoint's rows carry one of their own, which is
// younger (distance, modulo 2^32), and so do rows that others have committed meanwhile; only the savepoint's is still in
// progress. The cases keep the server from being asked about xids of long ago: it refuses some.
func query(w *outbox.Writer) string {
	payload := "o." + pgx.Identifier{w.Column("payload")}.Sanitize()
	return fmt.Sprintf(`
SELECT coalesce(json_agg(json_build_object('row', to_jsonb(o) - %[3]s, 'payload', %[2]s::text, 'type', pg_typeof(%[2]s)::text)
                         ORDER BY (to_jsonb(o)->>'seq')::numeric, o.cmin::text::bigint, o.ctid), '[]')::text
  FROM %[1]s o,
       LATERAL (SELECT pg_current_xact_id_if_assigned()::text::bigint AS own, o.xmin::text::bigint AS row) x,
       LATERAL (SELECT (x.row - x.own %% 4294967296 + 6442450944) %% 4294967296 - 2147483648 AS distance) d
 WHERE CASE
       WHEN x.own IS NULL OR x.row < 3 OR d.distance < 0 THEN false
       WHEN d.distance = 0 THEN true
       ELSE pg_xact_status((x.own + d.distance)::text::xid8) = 'in progress' END`,
		w.Table(), payload, "'"+strings.ReplaceAll(w.Column("payload"), "'", "''")+"'")
}

// decode turns the result of query into events.
func decode(t testing.TB, w *outbox.Writer, text string) []outbox.Event {
	t.Helper()
	var rows []struct {
		Row     map[string]any
		Payload *string
		Type    string
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&rows); err != nil {
		t.Fatalf("read %s: %v", w.Table(), err)
	}
	events := make([]outbox.Event, len(rows))
	for i, r := range rows {
		e := &events[i]
		for _, f := range fields {
			*f.of(e) = str(r.Row[w.Column(f.name)])
		}
		e.AggregateVersion, _ = strconv.ParseInt(str(r.Row[w.Column("aggregateversion")]), 10, 64)
		e.Headers = headers(r.Row[w.Column("headers")])
		for _, name := range traceFields {
			if value := str(r.Row[w.Column(name)]); value != "" {
				e.Headers[name] = value
			}
		}
		if r.Payload != nil {
			e.Payload = []byte(*r.Payload)
			if raw, err := hex.DecodeString(strings.TrimPrefix(*r.Payload, `\x`)); r.Type == "bytea" && err == nil {
				e.Payload = raw
			}
		}
	}
	return events
}

// str returns a value of a JSON object as text; NULL and what is not there are empty.
func str(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// headers reads the column, which is jsonb or text.
func headers(v any) map[string]string {
	object, ok := v.(map[string]any)
	if text, is := v.(string); is {
		ok = json.Unmarshal([]byte(text), &object) == nil
	}
	all := map[string]string{}
	if ok {
		for name, value := range object {
			all[name] = str(value)
		}
	}
	return all
}

// kinds names events without their payload.
func kinds(events []outbox.Event) string {
	if len(events) == 0 {
		return "none"
	}
	var names []string
	for _, e := range events {
		names = append(names, fmt.Sprintf("%s of %s %q", e.Type, e.AggregateType, e.AggregateID))
	}
	return strings.Join(names, ", ")
}

// difference says in which field got is not what want asks for; "" when it is in none.
func difference(got, want outbox.Event) string {
	for _, f := range fields {
		if is, should := *f.of(&got), *f.of(&want); should != "" && is != should {
			return fmt.Sprintf("%s is %q, not %q", f.name, is, should)
		}
	}
	if want.AggregateVersion != 0 && got.AggregateVersion != want.AggregateVersion {
		return fmt.Sprintf("aggregateversion is %d, not %d", got.AggregateVersion, want.AggregateVersion)
	}
	for name, should := range want.Headers {
		if is, ok := got.Headers[name]; !ok || is != should {
			return fmt.Sprintf("header %s is %q, not %q", name, is, should)
		}
	}
	if want.Payload != nil && !same(got.Payload, want.Payload) {
		return fmt.Sprintf("payload is %s, not %s", got.Payload, want.Payload)
	}
	return ""
}

// same compares payloads, JSON as what it means: jsonb does not keep how it was written.
func same(a, b []byte) bool {
	var x, y any
	if parse(a, &x) && parse(b, &y) {
		return reflect.DeepEqual(x, y)
	}
	return bytes.Equal(a, b)
}

// parse reads JSON and keeps the digits of numbers; it reports whether the text is one JSON value.
func parse(text []byte, v *any) bool {
	if !json.Valid(text) {
		return false
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(v) == nil
}
