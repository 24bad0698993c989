package deadlettertest

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// Everything comes back as it was given, byte for byte, whatever settings the role has.
func TestPutAndGet(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	role, url := s.role("odd")
	for _, setting := range []string{
		"bytea_output = 'escape'", "datestyle = 'German'", "timezone = 'Asia/Kathmandu'", "client_encoding = 'LATIN1'",
		"default_transaction_isolation = 'serializable'", "synchronous_commit = 'off'",
	} {
		s.Exec("ALTER ROLE " + role + " SET " + setting)
	}
	for _, sql := range append(catalog.DeadLetterGrants(role), "GRANT SELECT, UPDATE ON public.cdc_relay_slots TO "+role) {
		s.Exec(sql)
	}
	db := s.open(url)
	for setting, want := range map[string]string{"transaction_isolation": "read committed", "synchronous_commit": "local"} {
		got, err := catalog.Query(t.Context(), db, "read a setting", pgx.RowTo[string], "SELECT current_setting($1)", setting)
		if err != nil || got[0] != want {
			t.Errorf("%s is %q, %v, want %q", setting, got, err, want)
		}
	}
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	plain := s.letter(0)
	full := s.letter(1)
	full.Position = position.Position{Commit: 0xFFFF_FFFF_FFFF_FFFF, LSN: 1, Kind: position.Message, Index: 0xFFFF_FFFF}
	full.Table, full.MessageID, full.Topic, full.Key, full.Value, full.ValueBytes = `"S c".t`, every, "größer…", every, every, 256
	full.Headers = []deadletter.Header{{Name: string(every), Value: every}, {Name: "", Value: []byte{}}, {Name: "null"}, {Name: "type", Value: []byte("a")}, {Name: "type", Value: []byte("b")}}
	full.RecordTime, full.CommitTime = time.Date(98_765, 4, 3, 2, 1, 0, 123_456_000, time.UTC), time.Date(-43, 3, 15, 12, 0, 0, 1000, time.UTC)
	full.FirstFailed, full.LastFailed = time.Date(2026, 11, 30, 23, 59, 59, 999_999_000, time.UTC), time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	full.Reason, full.Attempts, full.MayBePublished, full.Ordinal = deadletter.Attempts, 7, true, 1<<40
	null, empty, missing := s.letter(2), s.letter(3), s.letter(4)
	null.Value, null.ValueBytes, null.Key, null.Headers, null.MessageID, null.Topic, null.Table, null.Type = nil, -1, nil, nil, nil, "", "", ""
	empty.Value, empty.ValueBytes, empty.Key = []byte{}, 0, []byte{}
	missing.Value, missing.ValueBytes, missing.ValueKept = []byte("dropped"), 1<<33, false
	for name, l := range map[string]*deadletter.Letter{"plain": plain, "full": full, "null": null, "empty": empty, "missing": missing} {
		marker, err := deadletter.Put(t.Context(), db, s.walsender, l)
		if err != nil || marker != l.Marker {
			t.Fatalf("%s: Put = %q, %v", name, marker, err)
		}
		list, err := deadletter.List(t.Context(), db, deadletter.Filter{Letters: []int64{s.idOf(marker)}}, 9, 0)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: List = %d letters, %v", name, len(list), err)
		}
		got, found, err := deadletter.Get(t.Context(), db, s.Slot, list[0].ID)
		if err != nil || !found {
			t.Fatalf("%s: Get = %v, %v", name, found, err)
		}
		if age := time.Since(got.Created); age.Abs() > time.Minute || !got.Changed.Equal(got.Created) {
			t.Errorf("%s: made %v, changed %v", name, got.Created, got.Changed)
		}
		want := *l
		want.ID, want.State, want.Created, want.Changed = got.ID, deadletter.Dead, got.Created, got.Changed
		if !want.ValueKept {
			want.Value = nil
		}
		wantSame(t, name, *got, want)
		want.Value = nil
		wantSame(t, name+", listed", list[0], want)
	}
	if _, found, err := deadletter.Get(t.Context(), db, "another", 1); found || err != nil {
		t.Errorf("Get of another slot = %v, %v", found, err)
	}
	if _, found, err := deadletter.Get(t.Context(), db, s.Slot, 1<<40); found || err != nil {
		t.Errorf("Get of no letter = %v, %v", found, err)
	}
}

// wantSame compares field by field.
func wantSame(t *testing.T, name string, got, want deadletter.Letter) {
	t.Helper()
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			t.Errorf("%s: %s comes back as %#v, want %#v", name, g.Type().Field(i).Name, g.Field(i), w.Field(i))
		}
	}
}

func (s *store) idOf(marker string) int64 {
	s.t.Helper()
	var id int64
	s.must(s.Conn().QueryRow(s.t.Context(), "SELECT id FROM public.cdc_relay_dead_letter WHERE marker = $1", marker).Scan(&id))
	return id
}

// One letter a position: a second Put returns the marker of the first one, so that a
// relay that has lost the answer, and its successor, wait for the same.
func TestPutTwice(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := s.letter(0)
	id := s.put(first)
	again := s.letter(0)
	again.Value, again.Reason = []byte("other"), deadletter.Attempts
	marker, err := deadletter.Put(t.Context(), s.db, s.walsender, again)
	if err != nil || marker != first.Marker {
		t.Errorf("a second Put = %q, %v, want the first one's marker %q", marker, err, first.Marker)
	}
	if got := s.get(id); string(got.Value) != "v" || got.Reason != deadletter.TooLarge {
		t.Errorf("the second Put has changed the letter to %+v", got)
	}
	other := s.letter(0)
	other.SystemID = "43" // a position means something else there
	s.put(other)
	for i := range uint32(3) {
		s.put(s.letter(i + 1))
	}
	if n := s.Text("SELECT count(*) FROM public.cdc_relay_dead_letter"); n != "5" {
		t.Errorf("%s letters, want 5", n)
	}
	if got := s.messages(); len(got) == 0 || got[0] != deadletter.MarkerPrefix+" "+first.Marker {
		t.Errorf("messages %q, want the marker %q first", got, first.Marker)
	}
}

// Letter and marker are one transaction.
func TestPutIsOneTransaction(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := s.letter(0)
	s.put(l)
	const sql = `SELECT count(DISTINCT xid::text) || ' ' || count(*) FROM pg_logical_slot_peek_changes($1, NULL, NULL)
		WHERE data LIKE 'message: transactional: 1 %' || $2 || '%' OR data LIKE 'table public.cdc_relay_dead_letter: INSERT:%'`
	if got := s.Text(sql, s.reader(), l.Marker); got != "1 2" {
		t.Errorf("transactions and changes: %s, want 1 2", got)
	}
}

// Whoever does not stream from the slot writes nothing, no letter and no marker.
func TestOnlyTheHolderPuts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	replayed := s.put(s.letter(9))
	s.replay(replayed)
	before := s.messages()
	try := func(walsender uint32) {
		t.Helper()
		if marker, err := deadletter.Put(ctx, s.db, walsender, s.letter(0)); !errors.Is(err, catalog.ErrNotHolder) || marker != "" {
			t.Errorf("Put = %q, %v, want that the slot is not held", marker, err)
		}
		back := s.letter(9)
		back.ID, back.Replays = replayed, 1
		if marker, err := deadletter.PutBack(ctx, s.db, walsender, back); !errors.Is(err, catalog.ErrNotHolder) || marker != "" {
			t.Errorf("PutBack = %q, %v, want that the slot is not held", marker, err)
		}
	}
	old := s.walsender
	try(old + 1)
	s.letGo()
	try(old)
	s.hold()
	try(old)
	if n := s.Text("SELECT count(*) FROM public.cdc_relay_dead_letter"); n != "1" {
		t.Errorf("%s letters, want 1", n)
	}
	if got := s.get(replayed); got.State != deadletter.Replayed {
		t.Errorf("letter %+v, want it replayed", got)
	}
	if after := s.messages(); !slices.Equal(after, before) {
		t.Errorf("messages %q, want %q", after, before)
	}
	s.put(s.letter(0)) // The new holder's is written.
}

// A relay that has got the slot learns of a letter that its predecessor was still
// writing: it waits for it.
func TestLoadWaitsForThePredecessor(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	l := s.letter(0)
	predecessor, err := catalog.Connect(ctx, catalog.Config{ConnString: s.URL})
	s.must(err)
	defer predecessor.Close(context.Background())
	tx, err := predecessor.Begin(ctx)
	s.must(err)
	s.must(rawPut(ctx, tx, s.walsender, l))

	type loaded struct {
		held []deadletter.Held
		err  error
	}
	done := make(chan loaded, 1)
	successor := s.open(s.URL)
	go func() {
		held, err := deadletter.Load(ctx, successor, s.Slot, l.SystemID, l.Position.Commit)
		done <- loaded{held, err}
	}()
	s.waiting()
	select {
	case got := <-done:
		t.Fatalf("Load did not wait: %v, %v", got.held, got.err)
	default:
	}
	s.must(tx.Commit(ctx))
	got := <-done
	if want := []deadletter.Held{{Position: l.Position, Marker: l.Marker}}; got.err != nil || !reflect.DeepEqual(got.held, want) {
		t.Errorf("Load = %v, %v, want %v", got.held, got.err, want)
	}
}

// rawPut writes a letter within a transaction.
func rawPut(ctx context.Context, tx pgx.Tx, walsender uint32, l *deadletter.Letter) error {
	const sql = `SELECT public.cdc_relay_dead_letter_put($1, $2, $3, $4::text::pg_lsn, $5::text::pg_lsn, 'r', $6, NULL, NULL, NULL, NULL, NULL, NULL, true,
		'{}', '{}', NULL, NULL, NULL, 'too_large', '', 1, NULL, NULL, false, 1, $7)`
	var marker *string
	err := tx.QueryRow(ctx, sql, int64(walsender), l.Slot, l.SystemID, l.Position.Commit.String(), l.Position.LSN.String(),
		int64(l.Position.Index), l.Marker).Scan(&marker)
	if err == nil && marker == nil {
		err = catalog.ErrNotHolder
	}
	return err
}

// The other order: a relay that is about to write while its successor loads finds out,
// after that, that it is deposed.
func TestPutWaitsForTheSuccessor(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	old := s.walsender
	loading, err := s.Conn().Begin(ctx)
	s.must(err)
	_, err = loading.Exec(ctx, "SELECT slot FROM public.cdc_relay_slots WHERE slot = $1 FOR UPDATE", s.Slot)
	s.must(err)
	done := make(chan error, 1)
	zombie := s.open(s.URL)
	go func() {
		_, err := deadletter.Put(ctx, zombie, old, s.letter(0))
		done <- err
	}()
	s.waiting()
	s.letGo()
	s.hold()
	s.must(loading.Commit(ctx))
	if err := <-done; !errors.Is(err, catalog.ErrNotHolder) {
		t.Errorf("Put = %v, want that the slot is not held", err)
	}
	held, err := deadletter.Load(ctx, s.db, s.Slot, "42", 0)
	if err != nil || len(held) != 0 {
		t.Errorf("Load = %v, %v, want none", held, err)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var want []deadletter.Held
	for _, p := range []position.Position{
		{Commit: 0x10, LSN: 0x1, Kind: position.Row},
		{Commit: 0x20, LSN: 0x9, Kind: position.Message},
		{Commit: 0x20, LSN: 0x9, Kind: position.Row, Index: 9},
		{Commit: 0x20, LSN: 0x9, Kind: position.Row, Index: 10},
		{Commit: 0x20, LSN: 0x11, Kind: position.Message},
		{Commit: 0x1_0000_0000, LSN: 0x2, Kind: position.Row},
	} {
		l := s.letter(0)
		l.Position = p
		s.put(l)
		want = append(want, deadletter.Held{Position: p, Marker: l.Marker})
	}
	foreign, elsewhere := s.letter(0), s.letter(0)
	foreign.SystemID = "43"
	s.put(foreign)
	s.put(elsewhere)
	s.Exec("UPDATE public.cdc_relay_dead_letter SET slot = 'other' WHERE marker = $1", elsewhere.Marker)
	// What has become of them does not matter: they are settled.
	s.Exec("UPDATE public.cdc_relay_dead_letter SET state = 'discarded' WHERE commit_lsn = '0/20' AND kind = 'm'")
	s.Exec("UPDATE public.cdc_relay_dead_letter SET state = 'replayed' WHERE commit_lsn = '1/0'")
	got, err := deadletter.Load(t.Context(), s.db, s.Slot, "42", 0x20)
	if err != nil || !reflect.DeepEqual(got, want[1:]) {
		t.Errorf("Load = %v, %v, want %v", got, err, want[1:])
	}
}

func TestRecent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	check := func(window int, want deadletter.History) {
		t.Helper()
		got, err := deadletter.Recent(t.Context(), s.db, s.Slot, "42", window)
		if err != nil || got.Total != want.Total || !slices.Equal(got.Ordinals, want.Ordinals) {
			t.Errorf("within %d: %+v, %v, want %+v", window, got, err, want)
		}
	}
	check(100, deadletter.History{})
	for i, ordinal := range []int64{5, 1000, 901, 900, 1000} {
		l := s.letter(uint32(i))
		l.Ordinal = ordinal
		s.put(l)
	}
	check(100, deadletter.History{Total: 1000, Ordinals: []int64{901, 1000, 1000}})
	check(1, deadletter.History{Total: 1000, Ordinals: []int64{1000}})
	check(5000, deadletter.History{Total: 1000, Ordinals: []int64{5, 900, 901, 1000, 1000}})
}

// A value of the greatest size that is kept goes in and comes out within its own time
// limit, which is not that of other statements.
func TestLargeValue(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	db, err := catalog.Open(t.Context(), catalog.Config{ConnString: s.URL, StatementTimeout: 250 * time.Millisecond})
	s.must(err)
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	large := s.letter(0)
	large.Value = make([]byte, 16<<20)
	for i := range large.Value {
		large.Value[i] = byte(i * i >> 7)
	}
	large.ValueBytes = int64(len(large.Value))
	marker, err := deadletter.Put(t.Context(), db, s.walsender, large)
	s.must(err)
	got, found, err := deadletter.Get(t.Context(), db, s.Slot, s.idOf(marker))
	if err != nil || !found || !bytes.Equal(got.Value, large.Value) {
		t.Fatalf("Get = %v, %v", found, err)
	}
	list, err := deadletter.List(t.Context(), db, deadletter.Filter{}, 10, 0)
	if err != nil || len(list) != 1 || list[0].Value != nil || list[0].ValueBytes != 16<<20 {
		t.Errorf("List = %d, %v, want one without value", len(list), err)
	}
	for _, size := range []int{256 << 10, 256<<10 + 1} { // on both sides of what is read at once
		l := s.letter(uint32(size))
		l.Value, l.ValueBytes = large.Value[:size], int64(size)
		if got := s.get(s.put(l)); !bytes.Equal(got.Value, l.Value) {
			t.Errorf("of %d bytes come back %d", size, len(got.Value))
		}
	}
	// The limit of other statements is what it was.
	_, err = catalog.Query(t.Context(), db, "sleep", pgx.RowTo[string], "SELECT pg_sleep(20)::text")
	wantTimeout(t, err)
}

func wantTimeout(t *testing.T, err error) {
	t.Helper()
	if catalog.SQLState(err) != "57014" {
		t.Errorf("error %v, want a time-out of the server", err)
	}
}

// Text that is for people is cut and cleaned; a database that lacks its characters
// takes it all the same.
func TestText(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := s.letter(0)
	l.Error = "a\x00b\nc\xff" + strings.Repeat("ü", 5000)
	l.Topic, l.Type = strings.Repeat("…", 5000), "\x1b[31mred"
	got := s.get(s.put(l))
	if want := "a b c\ufffd" + strings.Repeat("ü", 994); got.Error != want {
		t.Errorf("error of %d bytes: %.20q…", len(got.Error), got.Error)
	}
	if got.Topic != strings.Repeat("…", 1000) || got.Type != " [31mred" {
		t.Errorf("topic of %d bytes, type %q", len(got.Topic), got.Type)
	}
}

func TestOtherEncoding(t *testing.T) {
	t.Parallel()
	pg := ownServer(t, nil)
	conn, err := pgx.Connect(t.Context(), pg.URL("template1"))
	if err != nil {
		t.Fatal(err)
	}
	// New databases are made from template1.
	const latin1 = `UPDATE pg_database SET encoding = pg_char_to_encoding('LATIN1'), datcollate = 'C', datctype = 'C' WHERE datname = 'template1'`
	if _, err := conn.Exec(t.Context(), latin1); err != nil {
		t.Fatal(err)
	}
	conn.Close(context.Background())
	s := newStore(t, testenv.OnPostgres(pg))
	if got := s.Text("current_setting('server_encoding')"); got != "LATIN1" {
		t.Fatalf("the database is in %s", got)
	}
	l := s.letter(0)
	l.Error, l.Topic, l.Key = "größer…", "größer…", []byte("größer…")
	got := s.get(s.put(l))
	if got.Error != "gr??er?" || got.Topic != "gr??er?" || string(got.Key) != "größer…" {
		t.Errorf("letter %+v", got)
	}
	s.replay(got.ID)
	back := &deadletter.Letter{ID: got.ID, Slot: s.Slot, Replays: 1, Error: "ü", Marker: deadletter.NewMarker()}
	_, err = deadletter.PutBack(t.Context(), s.db, s.walsender, back)
	s.must(err)
	back.Replays, back.Error = 2, "…"
	s.replay(got.ID)
	_, err = deadletter.PutBack(t.Context(), s.db, s.walsender, back)
	s.must(err)
	if got := s.get(got.ID); got.Error != "?" {
		t.Errorf("error %q", got.Error)
	}
}
