package deadlettertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

func waitFor(t *testing.T, holds func() bool, otherwise string) {
	t.Helper()
	testenv.Until(t, patience, func(context.Context) error {
		if !holds() {
			return errors.New(otherwise)
		}
		return nil
	})
}

func TestCheckSchema(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	check := func() error { return deadletter.Check(t.Context(), s.db) }
	s.must(check())
	s.must(deadletter.CheckPurge(t.Context(), s.db))
	s.Exec("ALTER TABLE public.cdc_relay_dead_letter RENAME TO mine")
	wantFault(t, check(), catalog.Configuration, "table public.cdc_relay_dead_letter does not exist")
	wantFault(t, deadletter.CheckPurge(t.Context(), s.db), catalog.Configuration, "cdc-relay migrate up")
	_, err := deadletter.Put(t.Context(), s.db, s.walsender, s.letter(0))
	wantFault(t, err, catalog.Configuration, "cdc-relay migrate up")
	s.Exec("CREATE TABLE public.cdc_relay_dead_letter (id bigint)")
	wantFault(t, check(), catalog.Configuration, "cdc-relay migrate up")
	s.Exec("DROP TABLE public.cdc_relay_dead_letter")
	s.Exec("ALTER TABLE public.mine RENAME TO cdc_relay_dead_letter")
	s.Exec("DROP FUNCTION public.cdc_relay_dead_letter_put_back")
	wantFault(t, check(), catalog.Configuration, "functions of public.cdc_relay_dead_letter are missing")
	_, err = deadletter.PutBack(t.Context(), s.db, s.walsender, s.letter(0))
	wantFault(t, err, catalog.Configuration, "cdc-relay migrate up")
}

// Each right that is missing is named, before the relay starts and while it runs, and
// the SQL of the error gives it.
func TestCheckRights(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.Exec("REVOKE ALL ON SCHEMA public FROM PUBLIC")
	s.Exec("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC")
	s.Exec("REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text" + flush(s) + ") FROM PUBLIC")
	role, url := s.role("relay")
	db := s.open(url)
	cure := func(err error) {
		t.Helper()
		var e *catalog.CheckError
		if !errors.As(err, &e) {
			t.Fatalf("error %v", err)
		}
		ran := 0
		for statement := range strings.SplitSeq(e.Next, "; ") {
			if i := strings.Index(statement, "GRANT "); i >= 0 {
				s.Exec(statement[i:])
				ran++
			}
		}
		if ran == 0 {
			t.Fatalf("no SQL in %v", err)
		}
	}
	err := deadletter.Check(t.Context(), db)
	next := wantFault(t, err, catalog.Privilege, "USAGE on schema public; SELECT, INSERT, UPDATE on public.cdc_relay_dead_letter; "+
		"EXECUTE on function public.cdc_relay_dead_letter_put; EXECUTE on function public.cdc_relay_dead_letter_put_back; EXECUTE on function pg_logical_emit_message(")
	if !strings.Contains(next, "on_poison: halt") {
		t.Errorf("next step %q", next)
	}
	cure(err)
	s.must(deadletter.Check(t.Context(), db))
	work := func(i uint32) error {
		_, err := deadletter.Put(t.Context(), db, s.walsender, s.letter(i))
		return err
	}
	s.must(work(0))
	for i, revoke := range []string{
		"USAGE ON SCHEMA public", "SELECT ON public.cdc_relay_dead_letter", "INSERT ON public.cdc_relay_dead_letter",
		"EXECUTE ON FUNCTION public.cdc_relay_dead_letter_put",
	} {
		s.Exec("REVOKE " + revoke + " FROM " + role)
		what, _, _ := strings.Cut(revoke, " ")
		wantFault(t, deadletter.Check(t.Context(), db), catalog.Privilege, "it lacks "+what)
		err := work(uint32(i) + 1)
		wantFault(t, err, catalog.Privilege, "42501")
		cure(err)
		s.must(deadletter.Check(t.Context(), db))
		s.must(work(uint32(i) + 1))
	}
	s.Exec("REVOKE UPDATE ON public.cdc_relay_dead_letter FROM " + role)
	_, err = deadletter.Replay(t.Context(), db, []int64{1}, "")
	wantFault(t, err, catalog.Privilege, "42501")
	_, err = deadletter.Discard(t.Context(), db, []int64{1})
	wantFault(t, err, catalog.Privilege, "42501")
	cure(err)

	_, err = deadletter.Purge(t.Context(), db, "", time.Now(), 10)
	wantFault(t, err, catalog.Privilege, "GRANT DELETE ON public.cdc_relay_dead_letter")
	err = deadletter.CheckPurge(t.Context(), db)
	wantFault(t, err, catalog.Privilege, "GRANT DELETE ON public.cdc_relay_dead_letter")
	cure(err)
	s.must(deadletter.CheckPurge(t.Context(), db))
	_, err = deadletter.Purge(t.Context(), db, "", time.Now(), 10)
	s.must(err)
}

// flush is the fourth parameter that pg_logical_emit_message has since 17.
func flush(s *store) string {
	if s.Text("SELECT count(*) FROM pg_proc WHERE proname = 'pg_logical_emit_message' AND pronargs = 4") == "0" {
		return ""
	}
	return ", boolean"
}

// A role that may log in and no more can write any message it likes, and changes no
// letter by it; the functions give it nothing.
func TestForgery(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	l := s.letter(0)
	id := s.put(l)
	_, url := s.role("nobody")
	db := s.open(url)
	conn, err := catalog.Connect(ctx, catalog.Config{ConnString: url})
	s.must(err)
	defer conn.Close(context.Background())
	forged := fmt.Sprintf("%d 1", id)
	_, err = conn.Exec(ctx, "SELECT pg_logical_emit_message(true, $1, $2::text)", deadletter.ReplayPrefix, forged)
	s.must(err)
	if got := s.messages(); !slices.Contains(got, deadletter.ReplayPrefix+" "+forged) {
		t.Fatalf("messages %q, want the forged one", got)
	}
	// What the relay reads then: a letter that nobody replays.
	if got := s.get(id); got.State != deadletter.Dead || got.Replays != 0 || got.ReplayMarker != "" {
		t.Errorf("letter %+v", got)
	}

	refused := func(what string, err error) {
		t.Helper()
		if catalog.SQLState(err) != "42501" {
			t.Errorf("%s: %v, want permission denied", what, err)
		}
	}
	_, err = deadletter.Put(ctx, db, s.walsender, s.letter(1))
	refused("Put", err)
	_, err = deadletter.PutBack(ctx, db, s.walsender, &deadletter.Letter{ID: id, Slot: s.Slot, Replays: 1, Marker: "m"})
	refused("PutBack", err)
	_, err = deadletter.Replay(ctx, db, []int64{id}, "mine")
	refused("Replay", err)
	_, err = deadletter.Discard(ctx, db, []int64{id})
	refused("Discard", err)
	_, err = deadletter.Purge(ctx, db, "", time.Now(), 1)
	refused("Purge", err)
	_, _, err = deadletter.Get(ctx, db, s.Slot, id)
	refused("Get", err)
	_, err = deadletter.List(ctx, db, deadletter.Filter{}, 1, 0)
	refused("List", err)
	_, err = deadletter.Load(ctx, db, s.Slot, "42", 0)
	refused("Load", err)
	wantFault(t, deadletter.Check(ctx, db), catalog.Privilege, "SELECT, INSERT, UPDATE")
	wantSame(t, "after all that", *s.get(id), func() deadletter.Letter {
		want := *l
		got := s.get(id)
		want.ID, want.State, want.Created, want.Changed = id, deadletter.Dead, got.Created, got.Changed
		return want
	}())
	// A temporary table of its own does not lead the functions astray.
	_, err = conn.Exec(ctx, "CREATE TEMP TABLE pg_replication_slots (slot_name name, active_pid int, database name)")
	s.must(err)
	tx, err := conn.Begin(ctx)
	s.must(err)
	refused("put beside a table of that name", rawPut(ctx, tx, s.walsender, s.letter(1)))
	s.must(tx.Rollback(ctx))
}
