package catalogtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// states returns the state of every migration, such as "applied applied pending".
func states(t *testing.T, conn *pgx.Conn, o migrations.Options) string {
	t.Helper()
	steps, err := migrations.Status(t.Context(), conn, o)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range steps {
		all = append(all, string(s.State))
		if (s.State == migrations.Applied) == s.AppliedAt.IsZero() {
			t.Errorf("%s is %s at %s", s.ID(), s.State, s.AppliedAt)
		}
	}
	return strings.Join(all, " ")
}

func wantStates(t *testing.T, conn *pgx.Conn, want string) {
	t.Helper()
	if got := states(t, conn, migrations.Options{}); got != want {
		t.Errorf("states %q, want %q", got, want)
	}
}

// The owner of the database, no superuser, migrates up and down.
func TestMigrateAsOwner(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	ctx := t.Context()
	owner := env.Slot + "_o"
	env.Exec("CREATE ROLE " + owner + " LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { dropRoles(t, env, owner) })
	env.Exec("ALTER DATABASE " + env.Slot + " OWNER TO " + owner)
	conn := connect(t, as(t, env.URL, owner))
	wantStates(t, conn, "pending pending pending pending pending")
	for _, want := range []int{5, 0} {
		ran, err := migrations.Up(ctx, conn, migrations.Options{})
		if err != nil || len(ran) != want {
			t.Fatalf("Up ran %d, %v, want %d", len(ran), err, want)
		}
	}
	wantStates(t, conn, "applied applied applied applied applied")

	env.Exec("INSERT INTO public.outbox (aggregatetype, type) VALUES ('a', 'b')")
	env.Exec(`INSERT INTO public.cdc_relay_slots (slot, database, system_id, timeline, consistent_point, publications, history_id)
			VALUES ('s', 'd', '1', 1, '0/1', ARRAY['x', 'cdc_relay'], 'h')`)
	refuse := func(want, release string) {
		t.Helper()
		ran, err := migrations.Down(ctx, conn, 1, migrations.Options{})
		if len(ran) != 0 || catalog.SQLState(err) != "55006" || !strings.Contains(fmt.Sprint(catalog.Explain("migrate", err)), "--force") {
			t.Errorf("Down ran %d, %v, want refusal", len(ran), err)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Down = %v, want %q", err, want)
		}
		env.Exec(release)
		if ran, err := migrations.Down(ctx, conn, 1, migrations.Options{}); err != nil || len(ran) != 1 {
			t.Errorf("Down ran %d, %v, want 1", len(ran), err)
		}
	}
	env.Exec(`INSERT INTO public.cdc_relay_inbox_letter (consumer, message_id, state, blocks, reason) VALUES ('c', 'm', 'dead', false, 'permanent')`)
	refuse("public.cdc_relay_inbox_letter holds messages that wait", "UPDATE public.cdc_relay_inbox_letter SET state = 'discarded'")
	env.Exec(`INSERT INTO public.cdc_relay_dead_letter (slot, system_id, commit_lsn, change_lsn, kind, index, value_kept, reason, error,
			attempts, may_be_published, ordinal, marker, changed_lsn)
			VALUES ('s', '1', '0/1', '0/1', 'r', 0, true, 'too_large', '', 1, false, 1, '', '0/1')`)
	refuse("public.cdc_relay_dead_letter holds dead letters", "UPDATE public.cdc_relay_dead_letter SET state = 'discarded'")
	refuse("publication cdc_relay is in use", "UPDATE public.cdc_relay_slots SET publications = '{x}'")
	refuse("public.cdc_relay_slots holds rows", "DELETE FROM public.cdc_relay_slots")
	refuse("public.outbox holds rows", "DELETE FROM public.outbox")
	wantStates(t, conn, "pending pending pending pending pending")

	if _, err := migrations.Up(ctx, conn, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	env.Exec("INSERT INTO public.outbox (aggregatetype, type) VALUES ('a', 'b')")
	if ran, err := migrations.Down(ctx, conn, 5, migrations.Options{Force: true}); err != nil || len(ran) != 5 {
		t.Errorf("forced Down ran %d, %v, want 5", len(ran), err)
	}
	wantStates(t, conn, "pending pending pending pending pending")
}

// What somebody else made is left alone, up and down.
func TestMigrateAroundWhatExists(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	ctx := t.Context()
	env.Exec("CREATE TABLE public.outbox (id int)")
	conn := connect(t, env.URL)
	if ran, err := migrations.Up(ctx, conn, migrations.Options{Skip: []string{"publication"}}); err != nil || len(ran) != 3 {
		t.Fatalf("Up ran %d, %v, want 3", len(ran), err)
	}
	if got, want := states(t, conn, migrations.Options{Skip: []string{"publication"}}), "foreign applied skipped applied applied"; got != want {
		t.Errorf("states %q, want %q", got, want)
	}
	env.Exec("CREATE PUBLICATION cdc_relay FOR TABLE public.outbox")
	wantStates(t, conn, "foreign applied foreign applied applied")
	if ran, err := migrations.Down(ctx, conn, 9, migrations.Options{Force: true}); err != nil || len(ran) != 3 {
		t.Errorf("Down ran %d, %v, want 3", len(ran), err)
	}
	wantStates(t, conn, "foreign pending foreign pending pending")
}

func TestMigrateByManyAtOnce(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	const runners = 4
	type result struct {
		ran int
		err error
	}
	results := make(chan result)
	for range runners {
		conn := connect(t, env.URL)
		go func() {
			ran, err := migrations.Up(t.Context(), conn, migrations.Options{})
			results <- result{len(ran), err}
		}()
	}
	total := 0
	for range runners {
		r := <-results
		total += r.ran
		if r.err != nil {
			t.Error(r.err)
		}
	}
	if total != 5 {
		t.Errorf("%d migrations ran, want 5", total)
	}
}

func TestMigrateRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	ctx := t.Context()
	conn := connect(t, env.URL)
	if _, err := migrations.Up(ctx, conn, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	env.Exec("INSERT INTO public.cdc_relay_migrations (version, name, checksum) VALUES (999, 'future', '')")
	if _, err := migrations.Up(ctx, conn, migrations.Options{}); err != nil {
		t.Errorf("Up = %v, want a newer migration ignored", err)
	}
	if ran, err := migrations.Down(ctx, conn, 1, migrations.Options{}); err == nil || len(ran) != 0 || !strings.Contains(err.Error(), "999") {
		t.Errorf("Down ran %d, %v, want refusal", len(ran), err)
	}
	env.Exec("UPDATE public.cdc_relay_migrations SET checksum = 'x' WHERE version = 2")
	var changed *migrations.ChangedError
	if _, err := migrations.Up(ctx, conn, migrations.Options{}); !errors.As(err, &changed) || changed.Migration.Name != "cdc_relay_slots" {
		t.Errorf("Up = %v, want a ChangedError for 002_cdc_relay_slots", err)
	}
}

// A failed migration leaves nothing behind and the connection usable.
func TestMigrationIsOneTransaction(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	env.Exec("CREATE TYPE public.cdc_relay_slots AS ENUM ()") // in the way of the table's row type
	conn := connect(t, env.URL)
	ran, err := migrations.Up(t.Context(), conn, migrations.Options{})
	if err == nil || len(ran) != 1 || !strings.Contains(err.Error(), "002_cdc_relay_slots") {
		t.Fatalf("Up ran %d, %v, want one and an error about the second", len(ran), err)
	}
	wantStates(t, conn, "applied pending pending pending pending")
	env.Exec("DROP TYPE public.cdc_relay_slots")
	if ran, err := migrations.Up(t.Context(), conn, migrations.Options{}); err != nil || len(ran) != 4 {
		t.Errorf("Up ran %d, %v, want 4", len(ran), err)
	}
}

// Every printed format is the schema: another tool that runs it leaves the same
// state, and its way back removes it.
func TestPrintedMigrations(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	conn := connect(t, env.URL)
	run := func(sql string) {
		t.Helper()
		if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	files, err := migrations.Files(migrations.PSQL, migrations.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(files[0].Content, "\n") // the first line is psql's own
	run(script)
	wantStates(t, conn, "applied applied applied applied applied")
	if _, err := migrations.Down(t.Context(), conn, 5, migrations.Options{}); err != nil {
		t.Fatal(err)
	}

	files, err = migrations.Files(migrations.Flyway, migrations.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var undo []string
	for _, f := range files {
		if strings.HasPrefix(f.Name, "V") {
			run(f.Content)
		} else {
			undo = append([]string{f.Content}, undo...)
		}
	}
	wantStates(t, conn, "applied applied applied applied applied")
	for _, sql := range undo {
		run(sql)
	}
	wantStates(t, conn, "pending pending pending pending pending")
}
