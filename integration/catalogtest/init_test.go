package catalogtest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

func TestInitMakesAllThatCheckAsksFor(t *testing.T) {
	t.Parallel()
	env, major := testenv.New(t, testenv.NoKafka()), testenv.Major()
	schema(t, env)
	db := open(t, env.URL)
	want, err := db.Plan(t.Context(), setup(env))
	if err != nil {
		t.Fatal(err)
	}
	var told []catalog.Statement
	got, err := db.Init(t.Context(), setup(env), func(s catalog.Statement) { told = append(told, s) })
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) || !slices.Equal(told, []catalog.Statement(want)) || len(got) < 3 {
		t.Errorf("Init ran %v and told %v, want the plan %v", got, told, want)
	}
	r, err := db.Check(t.Context(), spec(env))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range r.Warnings {
		if w.Check != "server" { // the minor versions at hand are old
			t.Errorf("unexpected warning: %s", w)
		}
	}
	checkReport(t, r, env, major)
	again, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {})
	if err != nil || len(again) != 0 {
		t.Errorf("a second Init ran %v, %v, want nothing", again, err)
	}
}

func checkReport(t *testing.T, r catalog.Report, env *testenv.Env, major int) {
	t.Helper()
	if s := r.Server; s.Major() != major || s.SystemID == "" || s.Timeline != 1 || s.WALEnd == 0 || s.Pooled || s.Database != env.Slot || s.Slots < 1 {
		t.Errorf("server facts: %+v", s)
	}
	if p := r.Publication; !p.Insert || p.Update || p.Delete || p.Truncate || !p.ViaRoot || len(p.Tables) != 1 {
		t.Errorf("publication: %+v", p)
	}
	if s := r.Slot; s.Failover != (major >= 17) || s.Active || s.Confirmed == 0 || s.Restart == 0 || s.WALStatus != "reserved" || s.WALEnd < s.Confirmed {
		t.Errorf("slot: %+v", s)
	}
	row := r.Row
	if row.Slot != env.Slot || row.Database != env.Slot || row.SystemID != r.Server.SystemID || row.Timeline != 1 ||
		row.Consistent != r.Slot.Confirmed || !slices.Equal(row.Publications, []string{env.Publication}) ||
		len(row.HistoryID) != 32 || row.BackfillState != "none" || row.Confirmed != 0 || row.CleanStop {
		t.Errorf("row: %+v", row)
	}
}

// What init prints for a DBA, run by somebody else, satisfies the check.
func TestPrintedPlanRunsElsewhere(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	schema(t, env)
	db := open(t, env.URL)
	plan, err := db.Plan(t.Context(), setup(env))
	if err != nil {
		t.Fatal(err)
	}
	var sql bytes.Buffer
	if err := plan.Print(&sql); err != nil {
		t.Fatal(err)
	}
	// psql sends one statement at a time; so must this.
	conn := env.Conn().PgConn()
	for statement := range strings.SplitSeq(sql.String(), ";\n\n") {
		if _, err := conn.Exec(t.Context(), statement).ReadAll(); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	if _, err := db.Check(t.Context(), spec(env)); err != nil {
		t.Error(err)
	}
}

func TestInitAddsATable(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	db := ready(t, env)
	env.Exec(`CREATE SCHEMA "Sales"`)
	env.Exec(`CREATE TABLE "Sales"."Out box" (LIKE public.outbox) PARTITION BY LIST (type)`)
	env.Exec(`CREATE TABLE "Sales".a PARTITION OF "Sales"."Out box" DEFAULT`)
	more := catalog.TableName{Schema: "Sales", Name: "Out box"}
	sp := spec(env)
	sp.Tables = append(sp.Tables, catalog.TableSpec{Name: more, Required: required})
	_, err := db.Check(t.Context(), sp)
	wantFault(t, err, catalog.Configuration, `does not publish table "Sales"."Out box"`)

	// An open transaction that has written the table holds the change up.
	writer := env.Conn()
	tx, err := writer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO "Sales"."Out box" SELECT gen_random_uuid(), 'a', 'b', 'c', NULL, NULL, 1, '', '', '', now(), 1`); err != nil {
		t.Fatal(err)
	}
	st := setup(env)
	st.Tables = append(st.Tables, more)
	_, err = db.Init(t.Context(), st, func(catalog.Statement) {})
	wantFault(t, err, catalog.Unreachable, "pg_stat_activity")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The same connection is fit for use after the failed transaction.
	if got, err := db.Init(t.Context(), st, func(catalog.Statement) {}); err != nil || len(got) != 1 {
		t.Fatalf("Init ran %v, %v, want one statement", got, err)
	}
	if _, err := db.Check(t.Context(), sp); err != nil {
		t.Error(err)
	}
}

// Creating a slot waits for running transactions, beyond any statement timeout.
func TestSlotCreationOutlivesStatementTimeout(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	schema(t, env)
	db, err := catalog.Open(t.Context(), catalog.Config{ConnString: env.URL, StatementTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	writer := env.Conn()
	if _, err := writer.Exec(t.Context(), "BEGIN; SELECT txid_current()"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {})
		done <- err
	}()
	watcher := env.Conn() // within a transaction pg_stat_activity stands still
	waiting := "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid' AND now() - query_start > '400ms'"
	testenv.Until(t, 20*time.Second, func(ctx context.Context) error {
		var n int
		if err := watcher.QueryRow(ctx, waiting).Scan(&n); err != nil || n == 1 {
			return err
		}
		return errors.New("nobody waits yet")
	})
	if _, err := writer.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestInitByManyAtOnce(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	schema(t, env)
	errs := make(chan error)
	for range 4 {
		db := open(t, env.URL)
		go func() {
			_, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {})
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// The role of a running relay needs only what PrintGrants prints; what it may not
// do is said with the right that it takes.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	role, nobody := env.Slot+"_r", env.Slot+"_n"
	env.Exec("CREATE ROLE " + role + " LOGIN REPLICATION PASSWORD 'secret'")
	env.Exec("CREATE ROLE " + nobody + " LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { dropRoles(t, env, role, nobody) })
	schema(t, env)
	env.Exec("GRANT USAGE ON SCHEMA public TO " + role)
	db := open(t, as(t, env.URL, role))
	_, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {})
	wantFault(t, err, catalog.Privilege, "cannot read public.cdc_relay_slots")
	env.Exec("GRANT SELECT, INSERT, UPDATE ON public.cdc_relay_slots TO " + role)
	_, err = db.Init(t.Context(), setup(env), func(catalog.Statement) {})
	wantFault(t, err, catalog.Privilege, "it needs ownership of the tables")
	env.Exec("CREATE PUBLICATION " + env.Publication + " FOR TABLE public.outbox WITH (publish = 'insert')")

	env.Exec("GRANT USAGE ON SCHEMA public TO " + nobody)
	env.Exec("GRANT SELECT, INSERT, UPDATE ON public.cdc_relay_slots TO " + nobody)
	_, err = open(t, as(t, env.URL, nobody)).Init(t.Context(), setup(env), func(catalog.Statement) {})
	wantFault(t, err, catalog.Privilege, "REPLICATION")

	if _, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {}); err != nil {
		t.Fatal(err)
	}
	r, err := db.Check(t.Context(), spec(env))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.UpdateConfirmed(t.Context(), env.Slot, hold(t, env, r.Slot.Confirmed), r.Slot.Confirmed, 1, true); err != nil {
		t.Error(err)
	}
}

// dropRoles drops the roles with all that they own in the test's database.
func dropRoles(t *testing.T, env *testenv.Env, roles ...string) {
	t.Helper()
	conn, err := catalog.Connect(context.Background(), catalog.Config{ConnString: env.URL})
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), "ALTER DATABASE "+env.Slot+" OWNER TO postgres"); err != nil {
		t.Error(err)
	}
	for _, role := range roles {
		sql := "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + role + "'; DROP OWNED BY " + role + "; DROP ROLE " + role
		if _, err := conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
			t.Error(err)
		}
	}
}
