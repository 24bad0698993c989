package regress_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// columns are the types that a decoder may trip over, each with a value.
var columns = []struct{ name, kind, value string }{
	{"uuid", "uuid", "'0192e6a0-0000-7000-8000-000000000001'"},
	{"date", "date", "'2026-11-30 BC'"},
	{"infinity", "date", "'-infinity'"},
	{"time", "timetz", "'23:59:60+02'"},
	{"timestamp", "timestamptz", "'294276-12-31 23:59:59.999999'"},
	{"interval", "interval", "'1 year -2 days 00:00:03.5'"},
	{"inet", "inet", "'2001:db8::1/64'"},
	{"tsvector", "tsvector", "'fat:2,4 cat:3A'"},
	{"range", "int4range", "'[1,5]'"},
	{"xml", "xml", "'<a b=\"c\">&amp;</a>'"},
	{"money", "money", "'-1234.5'"},
	{"bit", "bit varying", "B'0101'"},
	{"point", "point", "'(1e-300,2)'"},
	{"numeric", "numeric", "123456789012345678901234567890.123456789"},
	{"nan", "numeric", "'NaN'"},
	{"numeric-infinity", "numeric", "'-Infinity'"},
	{"bigint", "bigint", "9007199254740993"},
	{"double", "double precision", "0.1::double precision + 0.2::double precision"},
	{"array", "text[]", `ARRAY['a "b"', NULL, '{}', 'c,d']`},
	{"nested-array", "int[]", "ARRAY[[1,2],[3,NULL]]"},
	{"enum", `"Mood Of"`, "'so so'"},
	{"domain", "short", "'dom'"},
	{"composite", "pair", "ROW(1, 'x \"y\"')"},
	{"bool", "boolean", "true"},
	{"json", "json", `'{"a":123456789012345678901234567890.1,  "h":"<&>"}'`},
	{"hex-like", "text", `E'\\x00ff10'`},
}

// No type of column is parsed that need not be: what is not mapped is passed over, what is mapped to a header is the
// server's text, digit for digit.
func TestColumnTypes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	s.Exec(`CREATE TYPE "Mood Of" AS ENUM ('so so')`)
	s.Exec(`CREATE DOMAIN short AS text CHECK (length(value) < 10)`)
	s.Exec(`CREATE TYPE pair AS (n int, t text)`)
	mapped, texts := map[string]string{}, []string{}
	var into, values []string
	for _, c := range columns {
		for _, prefix := range []string{"passed over ", "sent "} {
			s.Exec(fmt.Sprintf(`ALTER TABLE public.outbox ADD "%s%s" %s`, prefix, c.name, c.kind))
			into, values = append(into, `"`+prefix+c.name+`"`), append(values, c.value)
		}
		mapped["h-"+c.name] = "sent " + c.name
		texts = append(texts, `format('%s', "sent `+c.name+`")`) // As the server writes it: a cast of true is another text.
	}
	r := s.Start(testenv.Settings{"outbox.header_columns": mapped})
	s.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, payload, ` + strings.Join(into, ", ") +
		`) VALUES ('order', 'k', '1', ` + strings.Join(values, ", ") + `)`)
	s.insert(2, 2, 0) // All of them NULL.
	want := make([]string, len(columns))
	pointers := make([]any, len(columns))
	for i := range want {
		pointers[i] = &want[i]
	}
	if err := s.Conn().QueryRow(t.Context(), `SELECT `+strings.Join(texts, ", ")+` FROM public.outbox ORDER BY id LIMIT 1`).Scan(pointers...); err != nil {
		t.Fatal(err)
	}
	records := s.Consume(topic, 2, patience)
	for i, c := range columns {
		if got, _ := records[0].Header("h-" + c.name); got != want[i] {
			t.Errorf("%s: header %q, want %q", c.name, got, want[i])
		}
		if got, there := records[1].Header("h-" + c.name); there {
			t.Errorf("%s: header %q for NULL, want none", c.name, got)
		}
	}
	if got := numbers(records); fmt.Sprint(got) != "[1 2]" {
		t.Errorf("rows %v", got)
	}
	s.Stop(r)
}

// Types of mapped columns change while the relay runs, down to a type that is dropped and made again under its name.
func TestTypesChange(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	s.Exec(`ALTER TABLE public.outbox ADD type text`)
	r := s.Start(nil)
	const insert = `INSERT INTO public.outbox (aggregatetype, aggregateid, payload, type) VALUES ('order', 'k', '{}', $1)`
	steps := []struct{ change, value string }{
		{`CREATE TYPE "Event Kind" AS ENUM ('Order Placed')`, "text"},
		{`ALTER TABLE public.outbox ALTER type TYPE "Event Kind" USING 'Order Placed'`, "Order Placed"},
		{`ALTER TYPE "Event Kind" ADD VALUE 'Order Paid'`, "Order Paid"},
		{`ALTER TABLE public.outbox ALTER type TYPE text`, "text again"},
		{`DROP TYPE "Event Kind"`, "still text"},
		{`CREATE TYPE "Event Kind" AS ENUM ('zzz', 'Order Lost')`, "yet text"},
		{`ALTER TABLE public.outbox ALTER type TYPE "Event Kind" USING 'zzz'`, "Order Lost"},
		{`CREATE DOMAIN kind AS text`, "zzz"},
		{`ALTER TABLE public.outbox ALTER type TYPE kind`, "of a domain"},
	}
	for _, step := range steps {
		s.Exec(step.change)
		s.Exec(insert, step.value)
	}
	for i, record := range s.Consume(topic, len(steps), patience) {
		if got, _ := record.Header("type"); got != steps[i].value || string(record.Value) != "{}" {
			t.Errorf("record %d has type %q and value %q, want type %q", i, got, record.Value, steps[i].value)
		}
	}
	s.Stop(r)
}

// A payload is sent as the column has it, whatever kind of JSON or bytes it is, from json, jsonb, text and bytea.
func TestPayloads(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	large := make([]byte, 1<<20)
	_, _ = rand.Read(large) // Never fails.
	payloads := map[string][]any{
		"text":  {`\x00ff10`, `\x`, `[1,2]`, `"s"`, `3`, `null`, ``, nil},
		"bytea": {[]byte("\x00\xff\x10"), []byte{}, []byte(`\x00ff10`), large, nil},
		"json": {
			`[1,2]`, ` [1,  2] `, `"s"`, `3`, `true`, `null`, `{}`, nil,
			`{"b":1,"a":123456789012345678901234567890.123456789,"id":9007199254740993,"z":1e400,"h":"<&>\u00e9","b":2}`,
		},
	}
	payloads["jsonb"] = payloads["json"]
	var tables []string
	for kind := range payloads {
		tables = append(tables, "public.out_"+kind)
		s.Exec(`CREATE TABLE public.out_` + kind + ` (id int PRIMARY KEY, aggregatetype text DEFAULT '` + kind + `', aggregateid text, payload ` + kind + `)`)
		s.CreateTopic(kind, 1, "max.message.bytes", "4194304")
	}
	r := s.Start(testenv.Settings{"outbox.table": tables})
	for kind, values := range payloads {
		for i, value := range values {
			s.Exec(`INSERT INTO public.out_`+kind+` (id, aggregateid, payload) VALUES ($1, 'k', $2)`, i, value)
		}
		for i, record := range s.Consume(s.Topic(kind), len(values), patience) {
			want := s.stored(kind, i)
			if !bytes.Equal(record.Value, want) || (record.Value == nil) != (want == nil) {
				t.Errorf("%s %d: got %.100q, want %.100q", kind, i, record.Value, want)
			}
			if sent, ok := values[i].(string); ok && kind != "jsonb" && string(record.Value) != sent {
				t.Errorf("%s %d: got %.100q, sent %.100q", kind, i, record.Value, sent)
			}
		}
	}
	s.Stop(r)
}

// stored is what the database holds, nil for NULL.
func (s *stage) stored(kind string, id int) (value []byte) {
	s.t.Helper()
	expression := `convert_to(payload::text, 'UTF8')`
	if kind == "bytea" {
		expression = `payload`
	}
	if err := s.Conn().QueryRow(s.t.Context(), `SELECT `+expression+` FROM public.out_`+kind+` WHERE id = $1`, id).Scan(&value); err != nil {
		s.t.Fatal(err)
	}
	return value
}

// Updates of a row whose large payload lies outside it come without that payload. They are no events, and cost nothing.
func TestUpdatesOfLargeRows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	s.Exec(`ALTER TABLE public.outbox ADD type text, ALTER payload SET STORAGE EXTERNAL`)
	s.Exec(`CREATE PUBLICATION ` + s.Publication + ` FOR TABLE public.outbox`)
	r := s.Start(nil)
	payload := strings.Repeat("0123456789", 2000)
	s.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, payload) VALUES ('order', 'k', $1)`, payload)
	s.Exec(`UPDATE public.outbox SET type = 'sent'`)
	s.Exec(`ALTER TABLE public.outbox REPLICA IDENTITY FULL`)
	s.Exec(`UPDATE public.outbox SET type = 'sent again'`)
	s.Exec(`UPDATE public.outbox SET payload = '2'`)
	s.Exec(`DELETE FROM public.outbox`)
	s.Settled(s.insert(3, 3, 0))
	records := s.Consume(topic, 2, patience)
	if string(records[0].Value) != payload || string(records[1].Value) != "3" {
		t.Errorf("%d records: %.20q, %.20q; want the rows as they were inserted", len(records), records[0].Value, records[1].Value)
	}
	testenv.Until(t, patience, func(ctx context.Context) error {
		_, body, err := r.Get(ctx, "/metrics")
		for _, want := range []string{`{op="update"} 3`, `{op="delete"} 1`} {
			if err == nil && !strings.Contains(body, "cdc_relay_mutations_ignored_total"+want) {
				err = fmt.Errorf("no %s in the metrics", want)
			}
		}
		return err
	})
	s.Stop(r)
}
