package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"
)

func writer(t *testing.T, cfg Config) *Writer {
	t.Helper()
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func placed() Event {
	return Event{ID: "1", AggregateType: "order", AggregateID: "42", Type: "OrderPlaced", Payload: []byte(`{}`)}
}

// with returns an event that was changed.
func with(change func(*Event)) Event {
	e := placed()
	change(&e)
	return e
}

func header(name, value string) Event {
	return with(func(e *Event) { e.Headers = map[string]string{name: value} })
}

func TestEventsAreRefused(t *testing.T) {
	text := Config{Table: "t", OwnContentType: true}
	tests := map[string]struct {
		cfg   Config
		event Event
		want  string // "": taken
	}{
		"plain":                    {Config{}, placed(), ""},
		"no type":                  {Config{}, with(func(e *Event) { e.Type = "" }), "type"},
		"no aggregate type":        {Config{}, with(func(e *Event) { e.AggregateType = "" }), "aggregatetype"},
		"no column for the type":   {Config{Columns: map[string]string{"type": ""}}, with(func(e *Event) { e.Type = "" }), ""},
		"a value without a column": {Config{Columns: map[string]string{"schemaversion": ""}}, with(func(e *Event) { e.SchemaVersion = "2" }), "schemaversion"},
		"headers without a column": {Config{Columns: map[string]string{"headers": ""}}, header("tenant", "acme"), "headers"},
		"NUL in the key":           {Config{}, with(func(e *Event) { e.AggregateID = "a\x00b" }), "aggregateid"},
		"bytes for a type":         {Config{}, with(func(e *Event) { e.Type = "\xff" }), "type"},
		"NUL in a header":          {Config{}, header("tenant", "\x00"), "tenant"},
		"header without name":      {Config{}, header("", "x"), "no name"},
		"header id":                {Config{}, header("id", "x"), "Event.ID"},
		"header type":              {Config{}, header("type", "x"), "Event.Type"},
		"header of the relay":      {Config{}, header("cdc-relay-anything", "x"), "cdc-relay-anything"},
		"header aggregateversion":  {Config{}, header("aggregateversion", "1"), "Event.AggregateVersion"},
		"header correlationid":     {Config{}, header("correlationid", "1"), "Event.CorrelationID"},
		"header causationid":       {Config{}, header("causationid", "1"), "Event.CausationID"},
		"header schemaversion":     {Config{}, header("schemaversion", "1"), "Event.SchemaVersion"},
		"header of another column": {Config{HeaderColumns: []string{"region"}}, header("region", "eu"), "region"},
		"header of no column":      {Config{Columns: map[string]string{"correlationid": ""}}, header("correlationid", "1"), ""},
		"content type of JSON":     {Config{}, header("content-type", "text/plain"), "column's type"},
		"content type of text":     {text, header("content-type", "text/plain"), ""},
		"own trace":                {Config{}, header("traceparent", "x"), ""},
		"own trace, with a column": {Config{Columns: map[string]string{"traceparent": "traceparent"}}, header("traceparent", "x"), "context"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := writer(t, test.cfg).row(&test.event, nil)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want ErrInvalid that names %q", err, test.want)
			}
		})
	}
}

// An error tells where a value is wrong, and keeps the value to itself.
func TestRefusalShowsNoValue(t *testing.T) {
	const secret = "s3cret"
	for _, e := range []Event{
		header("tenant", secret+"\x00"), header("id", secret),
		{ID: "1", AggregateType: "order", AggregateID: secret + "\x00", Type: "x", Payload: []byte(secret)},
		{ID: "1", AggregateType: "order", Payload: []byte(secret)},
	} {
		_, err := Default().row(&e, nil)
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("got %v", err)
		}
	}
}

// A list is checked as a whole before anything is sent.
func TestListIsCheckedFirst(t *testing.T) {
	sent := false
	_, err := Default().insert(t.Context(), []Event{placed(), header("id", "x")}, func(string, []any) error {
		sent = true
		return nil
	})
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "event 2 of 2") || sent {
		t.Errorf("got %v, sent: %t", err, sent)
	}
}

func traced(t *testing.T) context.Context {
	t.Helper()
	state, err := trace.ParseTraceState("vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state})
	member, err := baggage.NewMember("tenant", "acme")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	return baggage.ContextWithBaggage(trace.ContextWithSpanContext(t.Context(), span), bag)
}

const parent = "00-01000000000000000000000000000000-0200000000000000-01"

func TestTraceContext(t *testing.T) {
	own := Config{Columns: map[string]string{"traceparent": "trace"}}
	tests := map[string]struct {
		cfg     Config
		ctx     context.Context
		event   Event
		headers any
		column  any
	}{
		"none":            {Config{}, t.Context(), placed(), nil, nil},
		"in the headers":  {Config{}, traced(t), placed(), `{"baggage":"tenant=acme","traceparent":"` + parent + `","tracestate":"vendor=1"}`, nil},
		"in a column":     {own, traced(t), placed(), `{"baggage":"tenant=acme","tracestate":"vendor=1"}`, parent},
		"the event's own": {Config{}, traced(t), header("traceparent", "mine"), `{"traceparent":"mine"}`, nil},
		"no place":        {Config{Columns: map[string]string{"headers": ""}}, traced(t), placed(), nil, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := writer(t, test.cfg).row(&test.event, traceOf(test.ctx))
			if err != nil {
				t.Fatal(err)
			}
			if r[fieldHeaders] != test.headers || r[fieldTraceparent] != test.column {
				t.Errorf("headers %v, column %v", r[fieldHeaders], r[fieldTraceparent])
			}
		})
	}
}

func TestStatement(t *testing.T) {
	w := writer(t, Config{Table: `sales."Out""box"`, Columns: map[string]string{"id": `event"id`, "payload": "body", "traceparent": "trace"}})
	var rows []row
	for _, e := range []Event{placed(), with(func(e *Event) { e.AggregateVersion, e.Payload = 7, nil })} {
		r, err := w.row(&e, nil)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	text, args := w.statement(rows)
	want := `INSERT INTO "sales"."Out""box" ("event""id", "aggregatetype", "aggregateid", "type", "body", "aggregateversion") VALUES ` +
		`($1, $2, $3, $4, $5, $6), ($7, $8, $9, $10, $11, $12)`
	if text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	if diff := cmp.Diff([]any{
		"1", "order", "42", "OrderPlaced", []byte(`{}`), nil, "1", "order", "42", "OrderPlaced", nil, int64(7),
	}, args); diff != "" {
		t.Error(diff)
	}
}

func TestManyAreSplit(t *testing.T) {
	var sizes []int
	ids, err := Default().insert(t.Context(), slices.Repeat([]Event{with(func(e *Event) { e.ID = "" })}, 2*perStatement+1),
		func(text string, args []any) error {
			sizes = append(sizes, len(args))
			if len(args) > 65535 || !strings.HasSuffix(text, fmt.Sprintf("$%d)", len(args))) {
				t.Errorf("%d parameters", len(args))
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	unique := map[string]bool{}
	for _, id := range ids {
		unique[id] = true
	}
	if len(unique) != 2*perStatement+1 || !slices.Equal(sizes, []int{5 * perStatement, 5 * perStatement, 5}) {
		t.Errorf("%d ids, statements of %v", len(unique), sizes)
	}
}

func TestNames(t *testing.T) {
	tables := map[string]string{ // "": refused
		"":                `"public"."outbox"`,
		"Outbox":          `"public"."outbox"`,
		"sales.outbox":    `"sales"."outbox"`,
		`"My.Out""box"`:   `"public"."My.Out""box"`,
		`"A"."b"`:         `"A"."b"`,
		"a.b.c":           "",
		"a.":              "",
		".a":              "",
		`"a`:              "",
		`a"b"`:            "",
		"a\x00":           "",
		`x; DROP TABLE y`: `"public"."x; drop table y"`,
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		w, err := New(Config{Table: name})
		switch want := tables[name]; {
		case err != nil && want != "":
			t.Errorf("%q: %v", name, err)
		case err == nil && w.Table() != want:
			t.Errorf("%q: got %s, want %q", name, w.Table(), want)
		}
	}
	for _, columns := range []map[string]string{
		{"payload": ""}, {"id": ""}, {"typo": "x"}, {"type": "x\x00"}, {"type": "id"},
	} {
		if _, err := New(Config{Columns: columns}); err == nil {
			t.Errorf("%v were accepted", columns)
		}
	}
}
