package deadletters

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// as is the URL of the test's database for another role.
func (s *stage) as(role, password string) string {
	s.t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	u.User = url.UserPassword(role, password)
	return u.String()
}

// connectAs opens a connection that is closed when the test ends.
func (s *stage) connectAs(role, password string) *pgx.Conn {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.as(role, password))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// minimal prepares the database and makes a role that has the rights that "init --print" tells, and no others.
func (s *stage) minimal() (role string, settings testenv.Settings) {
	s.t.Helper()
	s.prepare()
	role = "r" + s.Slot
	printed := s.Run("init", "--print", "--config", s.WriteConfig(testenv.Settings{"postgres.url": nil}))
	_, grants, found := strings.Cut(printed.Stdout, "-- The role that runs cdc-relay")
	if !found {
		s.t.Fatalf("no grants in:\n%s%s", printed.Stdout, printed.Stderr)
	}
	needed, _, _ := strings.Cut(grants, "-- Of use, but not needed")
	fill := strings.NewReplacer(`"cdc_relay"`, role, `"your_database"`, s.Slot, "'...'", "'"+password+"'")
	for line := range strings.Lines(needed) {
		if sql, ok := strings.CutPrefix(line, "--   "); ok {
			s.Exec(fill.Replace(sql))
		}
	}
	return role, testenv.Settings{"postgres.url": s.as(role, password), "shutdown_timeout": "1s"}
}

// refuses runs a relay that has to give up with the code and a next step that holds the text.
func (s *stage) refuses(settings testenv.Settings, code int, next string) {
	s.t.Helper()
	r := s.StartRelay(testenv.RelayOptions{Settings: settings})
	if got := r.Wait(patience); got != code {
		s.t.Errorf("exits with %d, want %d", got, code)
	}
	_, step, _ := strings.Cut(r.Output(), "\nTry: ")
	if !strings.Contains(step, next) {
		s.t.Errorf("says\n%s\nwant a next step with %q", r.Output(), next)
	}
}

// Without the table the relay does not start, and says how it comes to be; the same with each right. With on_poison: halt
// it needs none of this.
func TestStartWithoutStore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	role, settings := s.minimal()
	for _, right := range []string{"INSERT", "SELECT", "UPDATE"} {
		s.Exec(`REVOKE ` + right + ` ON public.cdc_relay_dead_letter FROM ` + role)
		s.refuses(settings, 77, "ON public.cdc_relay_dead_letter TO ")
		s.Exec(`GRANT ` + right + ` ON public.cdc_relay_dead_letter TO ` + role)
	}
	s.Exec(`DROP TABLE public.cdc_relay_dead_letter CASCADE`)
	s.Exec(`DELETE FROM public.cdc_relay_migrations WHERE name = 'cdc_relay_dead_letter'`) // as before the upgrade
	s.refuses(settings, 78, "cdc-relay migrate up")
	halts := with(settings, testenv.Settings{"on_poison": "halt"})
	r := s.StartRelay(testenv.RelayOptions{Settings: halts})
	r.WaitReady(patience)
	s.Stop(r)
	if res := s.Run("migrate", "up", "--config", s.WriteConfig(nil)); res.Code != 0 {
		t.Errorf("migrate up exits with %d: %s", res.Code, res.Stderr)
	}
	s.Exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON public.cdc_relay_dead_letter TO ` + role)
	r = s.StartRelay(testenv.RelayOptions{Settings: settings})
	r.WaitReady(patience)
	s.Settled(s.Insert("order", "k", "1", large("2 "), "3"))
	s.WaitLetters("dead", 1)
	s.Stop(r)
}

// A right that is withdrawn while the relay runs halts the lane of the row, which is neither dropped nor passed; other
// lanes go on. Given back, the row is a dead letter without anybody's help.
func TestRightWithdrawn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	role, settings := s.minimal()
	other := s.CreateTopic("invoice", 1)
	r := s.StartRelay(testenv.RelayOptions{Settings: settings})
	r.WaitReady(patience)
	s.Settled(s.Insert("order", "k", "1", large("2 "), "3"))
	s.Exec(`REVOKE INSERT ON public.cdc_relay_dead_letter FROM ` + role)
	within := s.Insert("order", "k", "4", large("5 "), "6")
	scene.Reason(t, r, s.topic, "cdc_relay_dead_letter")
	s.Insert("invoice", "k", "1")
	s.holds(other, "1")
	s.holds(s.topic, "1", "3", "4")
	s.WaitLetters("", 1)
	s.Held(within)
	s.Exec(`GRANT INSERT ON public.cdc_relay_dead_letter TO ` + role)
	s.SettledIn(patience, within) // It tries again every 30 seconds.
	s.WaitLetters("dead", 2)
	s.holds(s.topic, "1", "3", "4", "6")
	r.WaitReady(patience)
	s.Stop(r)
}

// A value that is larger than is kept comes out of the outbox table when it is replayed, byte for byte, if the role may
// read there and the row is still there. Else the dead letter stays dead and says why.
func TestValueNotKept(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.Exec(`ALTER TABLE public.outbox ALTER payload TYPE bytea USING NULL`)
	role, settings := s.minimal()
	settings = with(settings, testenv.Settings{"dead_letter.max_value_bytes": "1KiB"})
	r := s.StartRelay(testenv.RelayOptions{Settings: settings})
	r.WaitReady(patience)
	const size = topicLimit * 2
	s.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT 'order', 'k' || g, decode(repeat(lpad(to_hex(g), 2, '0') || '00ff7e', $1::int / 4), 'hex') FROM generate_series(1, 2) g`, size)
	letters := s.WaitLetters("dead", 2)
	for _, l := range letters {
		if l.Kept || l.Value != nil || l.ValueBytes != size {
			t.Errorf("%d of %d bytes are kept (%t), want none of %d", len(l.Value), l.ValueBytes, l.Kept, size)
		}
	}
	s.widen()
	s.Settled(s.Replay(letters[0].ID)) // not readable to the role
	if again := s.WaitLetters("dead", 2)[0]; again.Replays != 1 || !strings.Contains(again.Error, "outbox") {
		t.Errorf("got %+v, want one that says that the outbox table may not be read", again)
	}
	s.Exec(`GRANT SELECT ON public.outbox TO ` + role)
	s.Exec(`DELETE FROM public.outbox WHERE aggregateid = 'k2'`)
	s.Settled(s.Replay(ids(letters)...))
	gone := s.WaitLetters("dead", 1)[0]
	if gone.ID != letters[1].ID || gone.Reason != "value_gone" || gone.Replays != 1 {
		t.Errorf("got %+v, want the one whose row is gone", gone)
	}
	records := s.Consume(s.topic, 1, patience)
	want := slices.Repeat([]byte{1, 0, 0xff, 0x7e}, size/4)
	if len(records) != 1 || !slices.Equal(records[0].Value, want) || string(records[0].Key) != "k1" {
		t.Errorf("%d records, the first of %d bytes with key %q", len(records), len(records[0].Value), records[0].Key)
	}
	s.ready(r)
	s.Stop(r)
}

// What is counted and how old it is by reason, as an alert needs it.
func TestGauges(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(nil)
	s.Settled(s.Insert("order", "k", large("1 ")))
	s.Settled(s.Insert("a/b", "k", "2"))
	s.Stop(r)
	r = s.Start(nil) // It counts at once, and then every 15 seconds.
	const count, oldest = "cdc_relay_dead_letters", "cdc_relay_dead_letter_oldest_timestamp_seconds"
	for _, reason := range []string{"too_large", "invalid_topic"} {
		labels := fmt.Sprintf(`{reason="%s",source="relay"}`, reason)
		s.until(r, count+labels, 1)
		at := scene.Metric(t, r, oldest+labels)
		if age := s.Text(`SELECT abs(extract(epoch FROM created_at) - $1::float8) < 1 FROM public.cdc_relay_dead_letter WHERE reason = $2`, at, reason); age != "true" {
			t.Errorf("the oldest of reason %s is said to be of %v", reason, at)
		}
	}
	s.discard(ids(s.Letters())...)
	s.until(r, count, 0)
	s.Stop(r)
}

// Dead letters that were replayed or discarded are deleted once they are old enough and the relay cannot meet their rows
// again. Those that are dead stay.
func TestRetention(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(nil)
	s.Settled(s.Insert("order", "k", large("1 "), large("2 "), large("3 ")))
	letters := s.WaitLetters("dead", 3)
	s.widen()
	s.Settled(s.Replay(letters[0].ID))
	s.discard(letters[1].ID)
	s.Stop(r)

	positions := map[int64]string{}
	for _, l := range letters {
		positions[l.ID] = s.Text(`SELECT changed_lsn FROM public.cdc_relay_dead_letter WHERE id = $1`, l.ID)
	}
	retention := testenv.Settings{"dead_letter.retention": "1ms"}
	r = s.Start(retention)
	s.until(r, "cdc_relay_dead_letters", 1) // which it counts in the same round
	there := ids(s.Letters())
	for id, position := range positions {
		if !slices.Contains(there, id) && s.Text(`SELECT restart_lsn > $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, position, s.Slot) != "true" {
			t.Errorf("dead letter %d, changed at %s, is deleted, and the slot would start again from %s", id, position, s.OfSlot("restart_lsn"))
		}
	}
	testenv.Until(t, patience, func(context.Context) error {
		s.Exec(`CHECKPOINT`) // writes from where decoding may start
		s.Settled(s.Insert("order", "k", "more"))
		if s.Text(`SELECT coalesce(bool_and(restart_lsn > changed_lsn), true) FROM pg_replication_slots, public.cdc_relay_dead_letter WHERE slot_name = $1`, s.Slot) != "true" {
			return fmt.Errorf("the slot would start again from %s", s.OfSlot("restart_lsn"))
		}
		return nil
	})
	s.Stop(r)

	r = s.Start(retention)
	if left := s.WaitLetters("", 1)[0]; left.ID != letters[2].ID || left.State != "dead" {
		t.Errorf("got %+v, want the one that is dead", left)
	}
	s.Stop(r)
}

// Of several outbox tables each dead letter knows its own, so that a value that was not kept is not taken for that of
// another row with the same id.
func TestSeveralTables(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.Exec(`CREATE TABLE public."Other Box" (id bigint, aggregatetype text, aggregateid text, payload text)`)
	r := s.Start(testenv.Settings{
		"outbox.table": []string{"public.outbox", `public."Other Box"`}, "dead_letter.max_value_bytes": "1KiB", "breaker.share": 1,
	})
	s.Exec(`INSERT INTO public.outbox (id, aggregatetype, aggregateid, payload) OVERRIDING SYSTEM VALUE VALUES (7, 'order', 'k', $1)`, large("one "))
	s.Exec(`INSERT INTO public."Other Box" VALUES (7, 'order', 'k', $1), (8, 'no/topic', 'k', 'two ')`, large("other "))
	letters := s.WaitLetters("dead", 3)
	for i, want := range []string{`public.outbox`, `public."Other Box"`, `public."Other Box"`} {
		if letters[i].Source != want {
			t.Errorf("dead letter %d is of table %q, want %q", letters[i].ID, letters[i].Source, want)
		}
	}
	s.widen()
	s.Settled(s.Replay(letters[0].ID, letters[1].ID))
	s.holds(s.topic, "one ", "other ")
	s.Stop(r)
}
