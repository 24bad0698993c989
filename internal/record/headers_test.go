package record_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
)

func TestRowHeaders(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text      string
		want      []string
		reserved  uint64
		malformed uint64
	}{
		"string goes out bare":     {`{"a": "b"}`, []string{"a=b"}, 0, 0},
		"empty string":             {`{"a": ""}`, []string{"a="}, 0, 0},
		"escapes":                  {`{"a\"b": "x\\y\n\u00e9\ud83d\ude00"}`, []string{"a\"b=x\\y\né😀"}, 0, 0},
		"half a surrogate":         {`{"a": "\ud83d"}`, []string{"a=\ufffd"}, 0, 0},
		"number as written":        {`{"n":12345678901234567890.10,"e":1e400,"z":-0}`, []string{"n=12345678901234567890.10", "e=1e400", "z=-0"}, 0, 0},
		"true, false, null":        {`{"t":true ,"f":false,"n":null}`, []string{"t=true", "f=false", "n=null"}, 0, 0},
		"nested as written":        {`{"o": {"b":1, "a":"}<&>\""} , "l": [ 1,"]" ] }`, []string{`o={"b":1, "a":"}<&>\""}`, `l=[ 1,"]" ]`}, 0, 0},
		"twice the same name":      {`{"a":"1","a":"2"}`, []string{"a=1", "a=2"}, 0, 0},
		"empty name":               {`{"":"1"}`, []string{"=1"}, 0, 0},
		"white space":              {" \n{ \"a\"\t:\r\"b\" } ", []string{"a=b"}, 0, 0},
		"empty object":             {`{}`, nil, 0, 0},
		"trace context":            {`{"traceparent":"00-1","tracestate":"a=1","baggage":"k=v"}`, []string{"traceparent=00-1", "tracestate=a=1", "baggage=k=v"}, 0, 0},
		"optional names are free":  {`{"correlationid":"1"}`, []string{"correlationid=1"}, 0, 0},
		"array":                    {`["a"]`, nil, 0, 1},
		"string":                   {`"{}"`, nil, 0, 1},
		"JSON null":                {`null`, nil, 0, 1},
		"number":                   {`1`, nil, 0, 1},
		"empty":                    {``, nil, 0, 1},
		"not JSON":                 {`{"a":`, nil, 0, 1},
		"more than one value":      {`{} {}`, nil, 0, 1},
		"id":                       {`{"id":"forged","a":"b"}`, []string{"a=b"}, 1, 0},
		"id in disguise":           {`{"\u0069d":"forged"}`, nil, 1, 0},
		"type":                     {`{"type":1}`, nil, 1, 0},
		"content type is known":    {`{"content-type":"text/plain"}`, nil, 1, 0},
		"position and prefix":      {`{"cdc-relay-position":"1","cdc-relay-x":[1],"cdc-relay":"ok"}`, []string{"cdc-relay=ok"}, 2, 0},
		"deeper than a parser may": {strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), nil, 0, 1},
	}
	own := []string{"id=6b1f", "type=OrderPlaced", "content-type=application/json"}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, m, err := mapRow(t, defaults(), order(text("headers", oidJSON, tt.text)))
			if err != nil {
				t.Fatal(err)
			}
			if want := slices.Concat(own, tt.want); !slices.Equal(listed(got.Headers), want) {
				t.Errorf("headers %q, want %q", listed(got.Headers), want)
			}
			if d := m.Dropped(); d != (record.Dropped{Reserved: tt.reserved, Malformed: tt.malformed}) {
				t.Errorf("dropped %+v, want %d reserved and %d malformed", d, tt.reserved, tt.malformed)
			}
		})
	}
}

func TestOwnHeaders(t *testing.T) {
	t.Parallel()
	columns := defaults()
	columns.HeaderColumns = map[string]string{"tenant": "tenant_id", "zone": "absent", "b": "tags"}
	optional := order(
		text("correlationid", oidText, "c"), text("causationid", oidText, "d"), text("schemaversion", oidText, "3"),
		text("traceparent", oidText, "00-1"), text("tracestate", oidText, "t=1"), null("baggage", oidText),
		text("headers", oidJSONB, `{"traceparent": "forged", "baggage": "forged", "x": "y"}`),
	)
	tests := map[string]struct {
		config record.Config
		cells  []cell
		want   []string
	}{
		"optional columns": {defaults(), optional, []string{
			"id=6b1f", "type=OrderPlaced", "content-type=application/json", "correlationid=c", "causationid=d",
			"schemaversion=3", "traceparent=00-1", "tracestate=t=1", "x=y",
		}},
		"header columns": {columns, order(
			text("tenant_id", 1700, "NaN"), text("tags", 1009, "{a,b}"),
			text("headers", oidJSONB, `{"tenant": "forged", "zone": "forged", "b": 1}`),
		), []string{"id=6b1f", "type=OrderPlaced", "content-type=application/json", "b={a,b}", "tenant=NaN"}},
		"NULL column sends nothing": {
			columns, order(null("tenant_id", oidText), null("type", oidText)),
			[]string{"id=6b1f", "content-type=application/json"},
		},
		"bytea in a header": {
			columns, order(text("tenant_id", oidBytea, `\x4142`)),
			[]string{"id=6b1f", "type=OrderPlaced", "content-type=application/json", "tenant=AB"},
		},
		"content type of text is not known": {
			defaults(), order(text("payload", oidText, "{}")),
			[]string{"id=6b1f", "type=OrderPlaced"},
		},
		"then the row may say it": {
			defaults(), order(text("payload", oidBytea, `\x`), text("headers", oidJSONB, `{"content-type": "application/avro"}`)),
			[]string{"id=6b1f", "type=OrderPlaced", "content-type=application/avro"},
		},
		"content type by column": {
			defaults(), order(text("contenttype", oidText, "application/vnd.x+json")),
			[]string{"id=6b1f", "type=OrderPlaced", "content-type=application/vnd.x+json"},
		},
		"content type column is NULL": {
			defaults(), order(null("contenttype", oidText)),
			[]string{"id=6b1f", "type=OrderPlaced", "content-type=application/json"},
		},
		"a tombstone has no content": {
			defaults(), order(null("payload", oidJSON)),
			[]string{"id=6b1f", "type=OrderPlaced"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := mustMap(t, tt.config, tt.cells)
			if !slices.Equal(listed(got.Headers), tt.want) {
				t.Errorf("headers %q, want %q", listed(got.Headers), tt.want)
			}
		})
	}
}

// TestManyNames shows that names made up for ever are neither kept nor mixed up.
func TestManyNames(t *testing.T) {
	t.Parallel()
	m, out := newMapper(t, defaults()), publish.Record{}
	rel := relation(defaults().Tables[0], order())
	for i := range 5000 {
		name := fmt.Sprintf("n%d%s", i, strings.Repeat("x", i%300))
		cells := order(text("aggregatetype", oidText, name), text("headers", oidJSONB, `{"`+name+`": 1}`))
		if err := m.Map(insert(rel, cells), pos, commit, now, &out); err != nil {
			t.Fatal(err)
		}
		if out.Topic != "outbox.event."+name || out.Headers[len(out.Headers)-1].Name != name {
			t.Fatalf("topic %q, headers %q, want the name %q", out.Topic, listed(out.Headers), name)
		}
	}
}

// FuzzRowHeaders compares with encoding/json: the same names in the same order,
// strings decoded, everything else byte for byte, and never a failed row.
func FuzzRowHeaders(f *testing.F) {
	for _, seed := range []string{
		`{"a": "b"}`, `{"a":1,"b":[{"c":"}"}],"d":{"e":"\\\""}}`, `{"a\u0062":"\ud83d\ude00","":null}`, `[1]`, ` {} `, `{"a":"1","a":2}`, `{"x":-1.5e+3 }`,
	} {
		f.Add([]byte(seed))
	}
	m, out := newMapper(f, defaults()), publish.Record{}
	cells := order()
	rel := relation(defaults().Tables[0], cells)
	f.Fuzz(func(t *testing.T, data []byte) {
		if !utf8.Valid(data) {
			return // The server converts to UTF-8; encoding/json would replace what is not.
		}
		msg := insert(rel, order(text("headers", oidJSON, string(data))))
		if err := m.Map(msg, pos, commit, now, &out); err != nil {
			t.Fatalf("Map: %v", err)
		}
		want, ok := decodeHeaders(data)
		if !ok {
			want = nil
		}
		if got := listed(out.Headers[3:]); !slices.Equal(got, want) {
			t.Errorf("headers of %q: %q, want %q", data, got, want)
		}
	})
}

func decodeHeaders(data []byte) ([]string, bool) {
	var whole json.RawMessage
	if json.Unmarshal(data, &whole) != nil {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, false
	}
	var out []string
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, false
		}
		name, _ := token.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, false
		}
		if name == "id" || name == "type" || name == "content-type" || strings.HasPrefix(name, "cdc-relay-") {
			continue
		}
		var s string
		if value[0] == '"' && json.Unmarshal(value, &s) == nil {
			value = json.RawMessage(s)
		}
		out = append(out, name+"="+string(value))
	}
	return out, true
}
