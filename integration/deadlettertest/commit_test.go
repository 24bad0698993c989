package deadlettertest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// A letter is on the disk of the server when Put returns, whatever role, database and
// connection string say of synchronous_commit: the server crashes, and it is there.
func TestLetterSurvivesACrash(t *testing.T) {
	t.Parallel()
	// Nothing but a commit that waits brings the log to disk soon.
	pg := ownServer(t, map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"})
	s := newStore(t, testenv.OnPostgres(pg))
	ctx := t.Context()
	role, url := s.role("relay")
	for _, sql := range append(catalog.DeadLetterGrants(role), "GRANT SELECT, UPDATE ON public.cdc_relay_slots TO "+role,
		"ALTER ROLE "+role+" SET synchronous_commit = off",
		"ALTER DATABASE "+s.Slot+" SET synchronous_commit = off", "CREATE TABLE public.control (id int)", "GRANT INSERT ON public.control TO "+role) {
		s.Exec(sql)
	}
	db := s.open(url + "&SYNCHRONOUS_COMMIT=off")
	control, err := pgx.Connect(ctx, url)
	s.must(err)
	defer control.Close(context.Background())
	l := s.letter(0)
	marker, err := deadletter.Put(ctx, db, s.walsender, l)
	if err != nil || marker != l.Marker {
		t.Fatalf("Put = %q, %v", marker, err)
	}
	if _, err := control.Exec(ctx, "INSERT INTO public.control VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	s.must(pg.Stop(ctx, localstack.Immediate))
	s.must(pg.Start(ctx))
	if got := s.Text("SELECT count(*) FROM public.cdc_relay_dead_letter WHERE marker = $1", l.Marker); got != "1" {
		t.Errorf("%s letters after the crash, want 1", got)
	}
	if got := s.Text("SELECT count(*) FROM public.control"); got != "0" {
		t.Log("the control, which did not wait for the disk, has survived as well: the crash came too late to tell anything")
	}
	if got := s.messages(); len(got) != 1 || !strings.HasSuffix(got[0], l.Marker) {
		t.Errorf("messages %q, want the marker", got)
	}
}

// Where synchronous_standby_names names everybody, a commit that waited for a standby
// would wait for the walsender whose stream the relay does not read meanwhile.
func TestCommitsWaitForNoStandby(t *testing.T) {
	t.Parallel()
	pg := ownServer(t, nil)
	s := newStore(t, testenv.OnPostgres(pg))
	ctx := t.Context()
	s.put(s.letter(0))
	s.Exec("ALTER SYSTEM SET synchronous_standby_names = '*'")
	s.must(pg.Reload())
	defer func() {
		// The clean-up commits, too.
		s.localExec("ALTER SYSTEM RESET synchronous_standby_names")
		if err := pg.Reload(); err != nil {
			t.Error(err)
		}
	}()
	waitFor(t, func() bool { return s.Text("current_setting('synchronous_standby_names')") == "*" }, "the setting is not there")
	// Everybody else does wait.
	control := s.Conn()
	waits := make(chan error, 1)
	pid := control.PgConn().PID()
	go func() {
		_, err := control.Exec(ctx, "CREATE TABLE public.control (id int)")
		waits <- err
	}()
	waitFor(t, func() bool {
		return s.Text("SELECT wait_event FROM pg_stat_activity WHERE pid = $1", int64(pid)) == "SyncRep"
	}, "the control does not wait")

	l := s.letter(1)
	s.put(l)
	held, err := deadletter.Load(ctx, s.db, s.Slot, l.SystemID, 0)
	if err != nil || len(held) != 2 {
		t.Errorf("Load = %v, %v", held, err)
	}
	// Also from psql, with the settings that everybody has: the relay waits for the letter.
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = s.Conn().Exec(within, "SELECT public.cdc_relay_dead_letter_replay(ARRAY[1])")
	s.must(err)
	s.replay(2)
	back := *l
	back.ID, back.Replays = 1, 1
	if _, err := deadletter.PutBack(ctx, s.db, s.walsender, &back); err != nil {
		t.Error(err)
	}
	slot, _, err := s.db.Slot(ctx, s.Slot)
	s.must(err)
	if _, err := s.db.UpdateConfirmed(ctx, s.Slot, s.walsender, slot.Confirmed, 1, false); err != nil {
		t.Error(err)
	}
	row, _, err := s.db.SlotRow(ctx, s.Slot)
	s.must(err)
	if _, err := s.db.RenewHistory(ctx, s.Slot, s.walsender, row.HistoryID); err != nil {
		t.Error(err)
	}
	select {
	case err := <-waits:
		t.Errorf("the control has come back: %v", err)
	default:
	}
	s.Exec("SELECT pg_cancel_backend($1)", int64(pid))
	if err := <-waits; err != nil && !errors.Is(err, context.Canceled) {
		t.Log(err)
	}
}

// localExec runs a statement whose commit waits for nobody.
func (s *store) localExec(sql string) {
	s.t.Helper()
	conn, err := catalog.Connect(context.Background(), catalog.Config{ConnString: s.URL})
	s.must(err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), sql)
	s.must(err)
}
