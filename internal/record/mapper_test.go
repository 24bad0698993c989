package record_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

func TestDefaultRow(t *testing.T) {
	t.Parallel()
	got := mustMap(t, defaults(), order(text("aggregateversion", oidInt8, "7"), text("note", oidText, "not mapped")))
	want := publish.Record{
		Topic: "outbox.event.order", Key: []byte("42"), Value: []byte(`{"n": 1}`), ID: []byte("6b1f"),
		Headers: []publish.Header{
			{Name: "id", Value: []byte("6b1f")},
			{Name: "type", Value: []byte("OrderPlaced")},
			{Name: "content-type", Value: []byte("application/json")},
			{Name: "aggregateversion", Value: []byte("7")},
		},
		Time: commit, CommitTime: commit, Position: pos,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestColumnMap(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.Columns = map[string]string{"id": "Event ID", "payload": "body", "aggregateid": "key", "region": "region"}
	c.Topic = "sales:{region}:{aggregatetype}"
	c.Key = "{{{aggregateid}/{id}}}"
	cells := []cell{
		text("region", oidText, "eu"), text("Event ID", oidText, "1"), text("event id", oidText, "wrong"),
		text("aggregatetype", oidOther, "order"), text("key", oidText, "k"), text("body", oidText, "b"),
	}
	got := mustMap(t, c, cells)
	if got.Topic != "sales:eu:order" || string(got.Key) != "{k/1}" || string(got.Value) != "b" || string(got.ID) != "1" {
		t.Errorf("topic %q key %q value %q id %q", got.Topic, got.Key, got.Value, got.ID)
	}
	if want := []string{"id=1"}; !slices.Equal(listed(got.Headers), want) {
		t.Errorf("headers %q, want %q", listed(got.Headers), want)
	}
}

func TestValue(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		payload cell
		want    []byte // nil is NULL
	}{
		"NULL is a tombstone":      {null("payload", oidJSONB), nil},
		"NULL bytea":               {null("payload", oidBytea), nil},
		"JSON null is not NULL":    {text("payload", oidJSONB, "null"), []byte("null")},
		"empty is empty":           {text("payload", oidText, ""), []byte{}},
		"empty without a buffer":   {cell{"payload", oidText, wal.Value{Format: wal.FormatText}}, []byte{}},
		"empty bytea is empty":     {text("payload", oidBytea, `\x`), []byte{}},
		"bytea":                    {text("payload", oidBytea, `\x00ff10`), []byte{0, 0xff, 0x10}},
		"text like bytea":          {text("payload", oidText, `\x00ff10`), []byte(`\x00ff10`)},
		"json is kept as written":  {text("payload", oidJSON, ` {"b":1e400, "a":"<&>\u00e9","b":12345678901234567890.10}`), []byte(` {"b":1e400, "a":"<&>\u00e9","b":12345678901234567890.10}`)},
		"json string stays quoted": {text("payload", oidJSONB, `"s"`), []byte(`"s"`)},
		"array type":               {text("payload", 1009, `{a,"b c"}`), []byte(`{a,"b c"}`)},
		"domain or enum":           {text("payload", oidOther, "x"), []byte("x")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := mustMap(t, defaults(), order(tt.payload))
			if diff := cmp.Diff(tt.want, got.Value); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		template string
		cells    []cell
		want     []byte
	}{
		"column":                    {"{aggregateid}", nil, []byte("42")},
		"NULL column":               {"{aggregateid}", []cell{null("aggregateid", oidText)}, nil},
		"empty column":              {"{aggregateid}", []cell{text("aggregateid", oidText, "")}, []byte{}},
		"text and columns":          {"{aggregatetype}:{aggregateid}", nil, []byte("order:42")},
		"one of the columns NULL":   {"{aggregatetype}:{aggregateid}", []cell{null("aggregateid", oidText)}, nil},
		"constant":                  {"all", nil, []byte("all")},
		"empty template":            {"", nil, nil},
		"bytea":                     {"{aggregateid}", []cell{text("aggregateid", oidBytea, `\x0102`)}, []byte{1, 2}},
		"empty columns next to one": {"{type}{aggregateid}", []cell{text("type", oidText, ""), text("aggregateid", oidText, "")}, []byte{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := defaults()
			c.Key = tt.template
			got := mustMap(t, c, order(tt.cells...))
			if diff := cmp.Diff(tt.want, got.Key); diff != "" {
				t.Errorf("key (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConstantTopic(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.Topic = "events"
	if got := mustMap(t, c, without(order(), "aggregatetype")); got.Topic != "events" {
		t.Errorf("topic %q", got.Topic)
	}
}

// TestRowErrors also looks for contents of the row in the message.
func TestRowErrors(t *testing.T) {
	t.Parallel()
	secret := text("payload", oidJSONB, `"SECRET"`)
	tests := map[string]struct {
		cells  []cell
		column string
	}{
		"NULL id":         {order(secret, null("id", oidUUID)), "id"},
		"NULL in topic":   {order(secret, null("aggregatetype", oidText)), "aggregatetype"},
		"bytea not hex":   {order(text("payload", oidBytea, `SECRET\001`)), "payload"},
		"bytea odd":       {order(text("payload", oidBytea, `\xabc`)), "payload"},
		"bytea bad digit": {order(text("payload", oidBytea, `\xSE`)), "payload"},
		"bytea in header": {order(secret, text("type", oidBytea, `SECRET`)), "type"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := mapRow(t, defaults(), tt.cells)
			var rowErr *record.RowError
			if !errors.As(err, &rowErr) {
				t.Fatalf("Map = %v, want a *RowError", err)
			}
			if rowErr.Column != tt.column || rowErr.Table.Name != "outbox" || rowErr.Next == "" {
				t.Errorf("error %+v, want column %q, the table and a next step", rowErr, tt.column)
			}
			for _, content := range []string{"SECRET", "42", "6b1f"} {
				if strings.Contains(err.Error(), content) {
					t.Errorf("%q quotes the row", err)
				}
			}
		})
	}
}

func TestProtocolErrors(t *testing.T) {
	t.Parallel()
	form := func(name string, format byte) cell {
		return cell{name, oidText, wal.Value{Format: format, Data: []byte("x")}}
	}
	for _, cells := range [][]cell{
		order(form("payload", wal.FormatUnchanged)), order(form("id", wal.FormatBinary)),
		order(form("aggregateid", wal.FormatUnchanged)), order(form("headers", wal.FormatBinary)), order(form("type", 'z')),
	} {
		_, _, err := mapRow(t, defaults(), cells)
		if _, ok := errors.AsType[*wal.ProtocolError](err); !ok {
			t.Errorf("Map = %v, want a *wal.ProtocolError", err)
		}
	}
	m, cells := newMapper(t, defaults()), order()
	rel := relation(defaults().Tables[0], cells)
	for _, msg := range []*wal.Message{
		{Kind: wal.KindInsert}, {Kind: wal.KindCommit}, {Kind: wal.KindInsert, Relation: rel}, insert(rel, cells[:2]),
	} {
		err := m.Map(msg, pos, commit, now, &publish.Record{})
		if _, ok := errors.AsType[*wal.ProtocolError](err); !ok {
			t.Errorf("Map = %v, want a *wal.ProtocolError", err)
		}
	}
}

// TestUnmappedColumnsAreNotRead gives columns without a role every form there is.
func TestUnmappedColumnsAreNotRead(t *testing.T) {
	t.Parallel()
	mustMap(t, defaults(), order(
		cell{"a", oidBytea, wal.Value{Format: wal.FormatBinary, Data: []byte{1}}},
		cell{"b", oidOther, wal.Value{Format: wal.FormatUnchanged}},
		text("c", oidBytea, "not hex"), text("created_at", oidText, "not a time"),
	))
}

func TestMissingColumns(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"id", "payload", "aggregatetype", "aggregateid"} {
		_, _, err := mapRow(t, defaults(), without(order(), name))
		var column *record.ColumnError
		if !errors.As(err, &column) {
			t.Fatalf("without %s: Relation = %v, want a *ColumnError", name, err)
		}
		if column.Column != name || column.Field != name || !strings.Contains(err.Error(), "table public.outbox has no column \""+name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	for _, name := range []string{"type", "headers"} {
		mustMap(t, defaults(), without(order(), name))
	}
}

// TestVanishedColumn renames a column while rows come, and back.
func TestVanishedColumn(t *testing.T) {
	t.Parallel()
	m, out := newMapper(t, defaults()), publish.Record{}
	before := order()
	rel := relation(defaults().Tables[0], before)
	if err := m.Map(insert(rel, before), pos, commit, now, &out); err != nil {
		t.Fatalf("a relation that was not announced: %v", err)
	}
	renamed := append(without(order(), "payload"), text("body", oidJSONB, "{}"))
	gone := relation(defaults().Tables[0], renamed)
	var column *record.ColumnError
	for range 2 {
		if err := m.Relation(gone); !errors.As(err, &column) {
			t.Fatalf("Relation = %v, want a *ColumnError", err)
		}
		if err := m.Map(insert(gone, renamed), pos, commit, now, &out); !errors.As(err, &column) {
			t.Fatalf("Map = %v, want a *ColumnError", err)
		}
	}
	if err := m.Relation(rel); err != nil {
		t.Fatal(err)
	}
	if err := m.Map(insert(rel, before), pos, commit, now, &out); err != nil {
		t.Errorf("after the column is back: %v", err)
	}
}

// TestNewestRelation moves the columns around under one OID.
func TestNewestRelation(t *testing.T) {
	t.Parallel()
	m, out := newMapper(t, defaults()), publish.Record{}
	cells := order()
	for range 3 {
		rel := relation(defaults().Tables[0], cells)
		if err := m.Relation(rel); err != nil {
			t.Fatal(err)
		}
		if err := m.Map(insert(rel, cells), pos, commit, now, &out); err != nil {
			t.Fatal(err)
		}
		if string(out.Key) != "42" || string(out.Value) != `{"n": 1}` {
			t.Errorf("key %q value %q", out.Key, out.Value)
		}
		cells = append(slices.Clone(cells[2:]), cells[:2]...)
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	c := defaults()
	other := record.Table{Schema: "Sales", Name: "out box"}
	ignored := record.Table{Schema: "public", Name: "audit"}
	c.Tables, c.Ignored = append(c.Tables, other), []record.Table{ignored}
	m, out := newMapper(t, c), publish.Record{}
	send := func(table record.Table, cells []cell) error {
		rel := relation(table, cells)
		if err := m.Relation(rel); err != nil {
			return err
		}
		return m.Map(insert(rel, cells), pos, commit, now, &out)
	}
	for range 2 {
		if err := send(c.Tables[0], order()); err != nil || string(out.ID) != "6b1f" {
			t.Errorf("first table: %v, id %q", err, out.ID)
		}
		// The OID is the same, so that only the name can tell the tables apart.
		if err := send(other, append([]cell{text("x", oidText, "")}, order(text("id", oidText, "2"))...)); err != nil || string(out.ID) != "2" {
			t.Errorf("second table: %v, id %q", err, out.ID)
		}
		if err := send(ignored, []cell{text("x", oidText, "")}); !errors.Is(err, record.ErrIgnored) {
			t.Errorf("ignored table: %v, want ErrIgnored", err)
		}
		err := send(record.Table{Schema: "public", Name: "outbox_old"}, order())
		if _, ok := errors.AsType[*record.TableError](err); !ok || !strings.Contains(err.Error(), "public.outbox_old") {
			t.Errorf("unknown table: %v, want a *TableError that names it", err)
		}
	}
}

func TestTime(t *testing.T) {
	t.Parallel()
	asked := defaults()
	asked.CreatedAt = true
	created := func(oid uint32, value string) []cell { return order(text("created_at", oid, value)) }
	early := commit.Add(-time.Hour)
	tests := map[string]struct {
		config record.Config
		cells  []cell
		commit time.Time
		want   time.Time
	}{
		"commit time":            {defaults(), order(), commit, commit},
		"almost a day old":       {defaults(), order(), now.Add(-24 * time.Hour), now.Add(-24 * time.Hour)},
		"older than a day":       {defaults(), order(), now.Add(-24*time.Hour - 1), now},
		"a little ahead":         {defaults(), order(), now.Add(time.Minute), now.Add(time.Minute)},
		"far ahead":              {defaults(), order(), now.Add(time.Minute + 1), now},
		"created_at not asked":   {defaults(), created(oidTimestamptz, "2026-11-30 11:00:00+00"), commit, commit},
		"created_at":             {asked, created(oidTimestamptz, "2026-11-30 11:00:00+00"), commit, early},
		"with microseconds":      {asked, created(oidTimestamptz, "2026-11-30 11:00:00.25+00"), commit, early.Add(250 * time.Millisecond)},
		"offset in minutes":      {asked, created(oidTimestamptz, "2026-11-30 16:30:00+05:30"), commit, early},
		"offset in seconds":      {asked, created(oidTimestamptz, "2026-11-30 11:19:32+00:19:32"), commit, early},
		"negative offset":        {asked, created(oidTimestamptz, "2026-11-30 03:00:00-08"), commit, early},
		"without a zone":         {asked, created(oidTimestamp, "2026-11-30 11:00:00"), commit, early},
		"created_at is old":      {asked, created(oidTimestamptz, "2026-10-30 11:00:00+00"), commit, now},
		"created_at is ahead":    {asked, created(oidTimestamptz, "2027-11-30 11:00:00+00"), commit, now},
		"infinity":               {asked, created(oidTimestamptz, "infinity"), commit, commit},
		"before Christ":          {asked, created(oidTimestamptz, "0044-03-15 12:00:00+00 BC"), commit, commit},
		"year 10000":             {asked, created(oidTimestamptz, "10000-01-01 00:00:00+00"), commit, commit},
		"another type":           {asked, created(oidText, "2026-11-30 11:00:00+00"), commit, commit},
		"empty":                  {asked, created(oidTimestamptz, ""), commit, commit},
		"NULL":                   {asked, order(null("created_at", oidTimestamptz)), commit, commit},
		"column is not there":    {asked, order(), commit, commit},
		"text that is no offset": {asked, created(oidTimestamptz, "2026-11-30 11:00:00+0a"), commit, commit},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMapper(t, tt.config)
			rel := relation(defaults().Tables[0], tt.cells)
			var out publish.Record
			if err := m.Map(insert(rel, tt.cells), pos, tt.commit, now, &out); err != nil {
				t.Fatal(err)
			}
			if !out.Time.Equal(tt.want) {
				t.Errorf("time %s, want %s", out.Time, tt.want)
			}
			if !out.CommitTime.Equal(tt.commit) {
				t.Errorf("commit time %s, want %s", out.CommitTime, tt.commit)
			}
		})
	}
}

// TestReuse maps rows of different shape into one record: nothing of one may show
// in the next, and the slices of one row may not share bytes.
func TestReuse(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.Key = "{aggregatetype}/{aggregateid}"
	m, out := newMapper(t, c), publish.Record{}
	full := order(text("payload", oidBytea, `\x414243`), text("headers", oidJSON, `{"a\u0062": "c\td"}`))
	bare := order(null("payload", oidBytea), null("aggregateid", oidText), null("type", oidText))
	for range 3 {
		rel := relation(c.Tables[0], full)
		if err := m.Map(insert(rel, full), pos, commit, now, &out); err != nil {
			t.Fatal(err)
		}
		out.Value = append(out.Value, "!!"...) // Must not run into a neighbour.
		want := []string{"id=6b1f", "type=OrderPlaced", "ab=c\td"}
		if string(out.Key) != "order/42" || string(out.Value) != "ABC!!" || !slices.Equal(listed(out.Headers), want) {
			t.Errorf("key %q value %q headers %q", out.Key, out.Value, listed(out.Headers))
		}
		rel = relation(c.Tables[0], bare)
		if err := m.Map(insert(rel, bare), pos, commit, now, &out); err != nil {
			t.Fatal(err)
		}
		if out.Key != nil || out.Value != nil || !slices.Equal(listed(out.Headers), []string{"id=6b1f"}) {
			t.Errorf("key %q value %q headers %q", out.Key, out.Value, listed(out.Headers))
		}
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	tests := map[string][]cell{
		"json":  order(text("headers", oidJSONB, `{"traceparent": "00-4b-1", "tenant": 7, "tags": ["a", "b"]}`)),
		"bytea": order(text("payload", oidBytea, `\x`+strings.Repeat("0a", 1000))),
	}
	c := defaults()
	c.Key = "{aggregatetype}:{aggregateid}"
	for name, cells := range tests {
		m, out := newMapper(t, c), publish.Record{}
		msg := insert(relation(c.Tables[0], cells), cells)
		got := testing.AllocsPerRun(100, func() {
			if err := m.Map(msg, pos, commit, now, &out); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 && !raceDetector {
			t.Errorf("%s: %v allocations a row", name, got)
		}
	}
}

func BenchmarkMap(b *testing.B) {
	tests := map[string][]cell{
		"jsonb": order(text("payload", oidJSONB, `"`+strings.Repeat("x", 2000)+`"`)),
		"headers": order(text("headers", oidJSONB,
			`{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": 7, "tags": ["a", "b"]}`)),
		"bytea": order(text("payload", oidBytea, `\x`+strings.Repeat("0a", 2000))),
	}
	for name, cells := range tests {
		b.Run(name, func(b *testing.B) {
			m, out := newMapper(b, defaults()), publish.Record{}
			msg := insert(relation(defaults().Tables[0], cells), cells)
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Map(msg, pos, commit, now, &out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
