package commandtest

import (
	"context"
	"encoding/json"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// succeeds runs a command that has to print every text.
func succeeds(t *testing.T, env *testenv.Env, want []string, args ...string) (stdout string) {
	t.Helper()
	res := env.Run(args...)
	if res.Code != 0 {
		t.Fatalf("%v exits with %d: %s", args, res.Code, res.Stderr)
	}
	for _, w := range want {
		if !strings.Contains(res.Stdout, w) {
			t.Errorf("%v prints\n%swant %q", args, res.Stdout, w)
		}
	}
	return res.Stdout
}

// Init says what it does, and the second time there is nothing left to do.
func TestInit(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	file := env.WriteConfig(nil)
	succeeds(t, env, []string{
		"apply migration 001_outbox\n", "apply migration 002_cdc_relay_slots\n",
		"create publication " + env.Publication, "create slot " + env.Slot, "record slot " + env.Slot, "is relayed\n",
	}, "init", "--config", file)
	if again := succeeds(t, env, []string{"slot " + env.Slot + " is ready"}, "init", "--config", file); strings.Count(again, "\n") != 1 {
		t.Errorf("a second init does\n%s", again)
	}
	succeeds(t, env, []string{"configuration: ok\n", "postgres: ok: version ", "slot " + env.Slot, "kafka: ok\n"},
		"validate", "--live", "--config", file)
	if printed := succeeds(t, env, nil, "init", "--print", "--config", file); strings.Contains(printed, "CREATE TABLE") ||
		strings.Contains(printed, "pg_create_logical_replication_slot") {
		t.Errorf("init --print shows what is there already:\n%s", printed)
	}
}

// What init --print shows, run by psql as a DBA who is no superuser, and its grants make a set-up on which a role
// with nothing but them relays. That role can ask for the SQL itself.
func TestPrintedSetUp(t *testing.T) {
	t.Parallel()
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("needs psql")
	}
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	dba, role := env.Slot+"_dba", env.Slot+"_role"
	env.Exec(`CREATE ROLE ` + dba + ` LOGIN REPLICATION CREATEROLE PASSWORD 'secret'`)
	env.Exec(`CREATE ROLE ` + role + ` LOGIN REPLICATION PASSWORD 'secret'`)
	env.Exec(`ALTER DATABASE ` + env.Slot + ` OWNER TO ` + dba)
	t.Cleanup(func() { dropRoles(env, dba, role) })
	as := func(name string) string {
		return edit(env.URL, func(u *url.URL) { u.User = url.UserPassword(name, "secret") })
	}
	file := env.WriteConfig(testenv.Settings{"postgres.url": as(role)})
	refused(t, env.Run("init", "--config", file), 77, "permission denied", "cdc-relay init --print")
	printed := succeeds(t, env, []string{"CREATE TABLE public.outbox", "CREATE PUBLICATION", "pg_create_logical_replication_slot"},
		"init", "--print", "--config", file)
	run := func(sql string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), psql, "-X", "-v", "ON_ERROR_STOP=1", as(dba))
		cmd.Stdin = strings.NewReader(sql)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("psql: %v\n%s\nof\n%s", err, out, sql)
		}
	}
	run(printed)
	needed, _, _ := strings.Cut(printed, "-- Of use, but not needed")
	_, needed, _ = strings.Cut(needed, "-- The role that runs cdc-relay")
	for line := range strings.Lines(needed) {
		if sql, found := strings.CutPrefix(line, "--   GRANT"); found {
			run("GRANT" + sql)
		}
	}
	succeeds(t, env, []string{"postgres: ok"}, "validate", "--live", "--config", file)
	run("GRANT SELECT ON public.cdc_relay_migrations TO " + role) // shown as of use
	if left := succeeds(t, env, nil, "init", "--config", file); strings.Count(left, "\n") != 1 {
		t.Errorf("init still has to do\n%s", left)
	}
	insert(t, env, "k")
	r := env.StartRelay(testenv.RelayOptions{Settings: testenv.Settings{"postgres.url": as(role)}})
	r.WaitReady(patience)
	wantKeys(t, env, topic, "k")
	stop(t, r)
}

// dropRoles gives back what the roles own, since the test's database outlives its roles.
func dropRoles(env *testenv.Env, roles ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, env.URL)
	if err != nil {
		return // the server is gone, and the roles with it
	}
	defer conn.Close(ctx)
	for _, role := range roles {
		_, _ = conn.PgConn().Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '`+role+`';
			REASSIGN OWNED BY `+role+` TO postgres; DROP OWNED BY `+role+`; DROP ROLE `+role).ReadAll()
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	file := env.WriteConfig(testenv.Settings{"postgres.publication": nil, "kafka.brokers": []string{"127.0.0.1:1"}})
	migrate := func(args ...string) []string { return append(append([]string{"migrate"}, args...), "--config", file) }

	refused(t, env.Run(migrate("status")...), 3, "migrations are pending: 5", "cdc-relay migrate up")
	refused(t, env.Run(migrate("status", "--only", "outbox,cdc_relay_inbox")...), 3, "migrations are pending: 2", "cdc-relay migrate up --only outbox,cdc_relay_inbox")
	succeeds(t, env, []string{"nothing is applied"}, migrate("down")...)
	succeeds(t, env, []string{"applied 001_outbox\napplied 002_cdc_relay_slots\napplied 003_publication\napplied 004_cdc_relay_dead_letter\napplied 005_cdc_relay_inbox\n"}, migrate("up")...)
	succeeds(t, env, []string{"nothing is pending\n"}, migrate("up")...)
	if status := succeeds(t, env, nil, migrate("status")...); strings.Count(status, "applied") != 5 {
		t.Errorf("status:\n%s", status)
	}
	env.Exec(`INSERT INTO public.outbox (aggregatetype, type) VALUES ('a', 'b')`)
	refused(t, env.Run(migrate("down", "--steps", "5")...), 1, "outbox", "")
	if env.Text(`SELECT count(*) FROM public.outbox`) != "1" {
		t.Error("the row is gone")
	}
	succeeds(t, env, []string{"took back 001_outbox"}, migrate("down", "--steps", "5", "--force")...)
	refused(t, env.Run(migrate("status")...), 3, "pending: 5", "cdc-relay migrate up")

	for format, want := range map[string]string{
		"psql": "\\set ON_ERROR_STOP on", "flyway": "V002__cdc_relay_slots.sql", "liquibase": "--changeset cdc-relay:003_", "ef": "migrationBuilder.Sql(",
	} {
		succeeds(t, env, []string{want, "public.outbox"}, migrate("print", "--format", format)...)
	}
	script := strings.TrimPrefix(succeeds(t, env, nil, migrate("print")...), "\\set ON_ERROR_STOP on\n")
	if _, err := env.Conn().PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
		t.Fatal(err)
	}
	succeeds(t, env, []string{"nothing is pending\n"}, migrate("up")...)
	refused(t, env.Run(migrate("print", "--format", "oracle")...), 2, `unknown format "oracle"`, "--format psql")
}

// What was there before is left alone, and what is not ours is not touched.
func TestMigrateBesideAnotherOutbox(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	env.Exec(`CREATE TABLE public.outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, payload jsonb)`)
	file := env.WriteConfig(nil)
	succeeds(t, env, []string{"slot " + env.Slot + " is ready"}, "init", "--config", file)
	succeeds(t, env, []string{"001_outbox                 foreign"}, "migrate", "status", "--config", file)
	env.Exec(`INSERT INTO public.outbox VALUES (gen_random_uuid(), 'order', 'k', '1')`)
	topic := env.CreateTopic("order", 1)
	once(t, env)
	wantKeys(t, env, topic, "k")
	succeeds(t, env, nil, "migrate", "down", "--steps", "9", "--force", "--config", file)
	if env.Text(`SELECT count(*) FROM public.outbox`) != "1" {
		t.Error("the row is gone")
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	var version struct{ Version, Go, Platform string }
	if err := json.Unmarshal([]byte(succeeds(t, env, nil, "version", "-o", "json")), &version); err != nil {
		t.Fatal(err)
	}
	if version.Version == "" || version.Go == "" || version.Platform == "" {
		t.Errorf("version %+v", version)
	}
}

// health asks a relay in the way that a container's probe does.
func TestHealth(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	port, err := localstack.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	listen := testenv.Settings{"http.listen": port.Addr()}
	r := env.StartRelay(testenv.RelayOptions{Settings: listen, Args: []string{"--init"}})
	r.WaitReady(patience)
	file := env.WriteConfig(listen)
	succeeds(t, env, []string{"ok: leader\n"}, "health", "--config", file)
	succeeds(t, env, []string{"ok\n"}, "health", "--live", "--config", file)
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('nowhere', 'k', 'T', '{}')`)
	notReady(t, r, patience, env.Topic("nowhere"))
	res := env.Run("health", "--config", file)
	refused(t, res, 3, "503", "reasons")
	if !strings.Contains(res.Stdout, env.Topic("nowhere")) {
		t.Errorf("health does not name the topic: %s", res.Stdout)
	}
	env.CreateTopic("nowhere", 1)
	r.WaitReady(patience)
	stop(t, r)
	refused(t, env.Run("health", "--config", file), 69, "connection refused", "http.listen")
}
