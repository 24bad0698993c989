package deadlettertest

import (
	"bytes"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// A payload read from its table is what the stream would have: the text of its type,
// and the bytes of a bytea.
func TestReadValue(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const id = "2f7f2b2e-0000-4000-8000-000000000001"
	s.Exec(`CREATE SCHEMA "S c"`)
	s.Exec(`CREATE DOMAIN public.blob AS bytea`)
	s.Exec(`CREATE TABLE "S c"."T t" ("I d" uuid PRIMARY KEY, n bigint UNIQUE, raw bytea UNIQUE, t text, j json, b jsonb, y bytea, c char(5), d date,
		f float8, m public.blob, at timestamptz, e text)`)
	s.Exec(`INSERT INTO "S c"."T t" VALUES ($1, 42, '\x00ff27', 'größer', '{"a" : 1}', '{"a" : 1}', '\x00ff41', 'ab', '2026-01-02',
		0.1::float8 + 0.2, '\x0102', '2026-01-02 03:04:05+00', '')`, id)
	s.Exec(`INSERT INTO "S c"."T t" ("I d") VALUES ('2f7f2b2e-0000-4000-8000-000000000002')`)
	read := func(table, idColumn, column string, id []byte) ([]byte, bool) {
		t.Helper()
		value, found, err := deadletter.ReadValue(t.Context(), s.db, table, idColumn, column, id)
		if err != nil {
			t.Errorf("%s of %s: %v", column, table, err)
		}
		return value, found
	}
	const table = `"S c"."T t"`
	for column, want := range map[string]string{
		"t": "größer", "j": `{"a" : 1}`, "b": `{"a": 1}`, "y": "\x00\xffA", "c": "ab   ", "d": "2026-01-02", "f": "0.30000000000000004",
		"m": `\x0102`, "at": "2026-01-02 03:04:05+00", "e": "", "n": "42",
	} {
		if got, found := read(table, "I d", column, []byte(id)); !found || got == nil || string(got) != want {
			t.Errorf("column %s: %q, %v, want %q", column, got, found, want)
		}
	}
	if got, found := read(table, "I d", "t", []byte("2f7f2b2e-0000-4000-8000-000000000002")); !found || got != nil {
		t.Errorf("NULL is %q, %v", got, found)
	}
	if got, found := read(table, "n", "t", []byte("42")); !found || string(got) != "größer" {
		t.Errorf("by number: %q, %v", got, found)
	}
	if got, found := read(table, "raw", "y", []byte("\x00\xff'")); !found || !bytes.Equal(got, []byte("\x00\xffA")) {
		t.Errorf("by bytea: %q, %v", got, found)
	}
	for name, c := range map[string]struct {
		table, id, column string
		message           []byte
	}{
		"row":       {table, "I d", "t", []byte("2f7f2b2e-0000-4000-8000-000000000003")},
		"table":     {`"S c".gone`, "I d", "t", []byte(id)},
		"id column": {table, "id", "t", []byte(id)},
		"payload":   {table, "I d", "payload", []byte(id)},
		"no uuid":   {table, "I d", "t", []byte("x")},
		"too large": {table, "n", "t", []byte("99999999999999999999")},
		"zero byte": {table, "I d", "t", []byte("\x00")},
		"NULL":      {table, "I d", "t", nil},
	} {
		if got, found := read(c.table, c.id, c.column, c.message); found || got != nil {
			t.Errorf("%s: %q, %v, want none", name, got, found)
		}
	}

	role, url := s.role("relay")
	db := s.open(url)
	_, _, err := deadletter.ReadValue(t.Context(), db, table, "I d", "t", []byte(id))
	s.Exec(`GRANT USAGE ON SCHEMA "S c" TO ` + role)
	_, _, second := deadletter.ReadValue(t.Context(), db, table, "I d", "t", []byte(id))
	wantFault(t, err, catalog.Privilege, `GRANT SELECT ON "S c"."T t" TO "`+role+`"`)
	wantFault(t, second, catalog.Privilege, `GRANT SELECT ON "S c"."T t" TO "`+role+`"`)
	s.Exec(`GRANT SELECT ON "S c"."T t" TO "` + role + `"`)
	value, found, err := deadletter.ReadValue(t.Context(), db, table, "I d", "t", []byte(id))
	if err != nil || !found || string(value) != "größer" {
		t.Errorf("with the right: %q, %v, %v", value, found, err)
	}
}

func TestReadLargeValue(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.Exec("CREATE TABLE public.big (id int PRIMARY KEY, payload text)")
	s.Exec("INSERT INTO public.big VALUES (1, repeat('0123456789abcdef', 2 << 20))")
	value, found, err := deadletter.ReadValue(t.Context(), s.db, "public.big", "id", "payload", []byte("1"))
	if err != nil || !found || len(value) != 32<<20 || !bytes.HasSuffix(value, []byte("abcdef")) {
		t.Errorf("%d bytes, %v, %v", len(value), found, err)
	}
}
