package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// ownServer is for tests that stop or configure a server.
func ownServer(t *testing.T, settings map[string]string) *localstack.Postgres {
	t.Helper()
	pg, err := localstack.StartPostgres(t.Context(), localstack.PostgresConfig{Major: testenv.Major(), NoSync: true, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Close() })
	return pg
}

func exec(t *testing.T, pg *localstack.Postgres, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServerFaults(t *testing.T) {
	t.Parallel()
	pg := ownServer(t, map[string]string{"wal_level": "replica"})
	check := func() ([]catalog.Warning, error) {
		s, err := open(t, pg.URL("postgres")).Server(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Check()
	}
	_, err := check()
	wantFault(t, err, catalog.Configuration, "wal_level is replica")

	exec(t, pg, "ALTER SYSTEM SET synchronous_standby_names = '*'", "ALTER SYSTEM SET wal_level = 'logical'")
	if err := pg.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	// localstack's own setting of wal_level stands in postgresql.conf; ALTER SYSTEM wins.
	warnings, err := check()
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(warnings); !strings.Contains(text, "every commit of every application waits") {
		t.Errorf("warnings %s, want one about synchronous_standby_names", text)
	}

	if err := pg.Stop(t.Context(), localstack.Fast); err != nil {
		t.Fatal(err)
	}
	_, err = catalog.Open(t.Context(), catalog.Config{ConnString: pg.URL("postgres")})
	wantFault(t, err, catalog.Unreachable, "cannot connect to PostgreSQL")
	if err := os.WriteFile(filepath.Join(pg.DataDir(), "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = check()
	wantFault(t, err, catalog.Configuration, "is a standby")
}

func TestConnectFaults(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	const secret = `S3cr3t/?#[]@:%&'"\ =pa`
	u, err := url.Parse(env.URL)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(u *url.URL, q url.Values)) string {
		v := *u
		q := v.Query()
		change(&v, q)
		v.RawQuery = q.Encode()
		return v.String()
	}
	for _, c := range []struct {
		name  string
		cfg   catalog.Config
		class catalog.Class
		want  string
	}{
		{"wrong password", catalog.Config{ConnString: with(func(u *url.URL, _ url.Values) { u.User = url.UserPassword("postgres", secret) })}, catalog.Privilege, "28P01"},
		{"wrong password elsewhere", catalog.Config{ConnString: env.URL, Password: secret}, catalog.Privilege, "28P01"},
		{"unknown role", catalog.Config{ConnString: with(func(u *url.URL, _ url.Values) { u.User = url.UserPassword("nobody_x", secret) })}, catalog.Privilege, "postgres.password_file"},
		{"unknown database", catalog.Config{ConnString: with(func(u *url.URL, _ url.Values) { u.Path = "/none" })}, catalog.Configuration, "name an existing database"},
		{"no tls", catalog.Config{ConnString: with(func(_ *url.URL, q url.Values) { q.Set("sslmode", "require") })}, catalog.Configuration, "sslmode"},
	} {
		_, err := catalog.Open(t.Context(), c.cfg)
		wantFault(t, err, c.class, c.want)
		for _, s := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), "S3cr3t"} {
			if text := fmt.Sprintf("%v %+v %q", err, err, err); strings.Contains(text, s) {
				t.Errorf("%s: the error shows %q: %s", c.name, s, text)
			}
		}
	}
}

// Settings of the role must not end or disturb the connection.
func TestSessionSettings(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	role := env.Slot + "_r"
	env.Exec("CREATE ROLE " + role + " LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { dropRoles(t, env, role) })
	for _, setting := range []string{"idle_session_timeout = '1s'", "statement_timeout = '1ms'", "search_path = nowhere", "standard_conforming_strings = off"} {
		env.Exec("ALTER ROLE " + role + " SET " + setting)
	}
	conn := connect(t, as(t, env.URL, role))
	for setting, want := range map[string]string{
		"idle_session_timeout": "0", "statement_timeout": "5s", "search_path": "pg_catalog", "application_name": catalog.ApplicationName,
	} {
		var got string
		if err := conn.QueryRow(t.Context(), "SHOW "+setting).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", setting, got, err, want)
		}
	}
	if _, err := open(t, as(t, env.URL, role)).Server(t.Context()); err != nil {
		t.Error(err)
	}
}

// Callers take turns; one that gives up while it waits costs the others nothing,
// one that gives up while it is served costs the connection.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	db := ready(t, env)
	errs := make(chan error)
	for range 8 {
		go func() {
			var err error
			for range 20 {
				_, _, slotErr := db.Slot(t.Context(), env.Slot)
				err = errors.Join(err, slotErr)
				if db.Closed() {
					err = errors.Join(err, errors.New("closed"))
				}
			}
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := db.Slot(canceled, env.Slot); !errors.Is(err, context.Canceled) || errors.As(err, new(*catalog.CheckError)) {
		t.Errorf("Slot with a cancelled context = %v, want the context's error", err)
	}
	if err := db.Close(t.Context()); err != nil || !db.Closed() {
		t.Errorf("Close = %v, closed %v", err, db.Closed())
	}
	_, _, err := db.Slot(t.Context(), env.Slot)
	if !errors.As(err, new(*catalog.CheckError)) {
		t.Errorf("Slot after Close = %v, want a CheckError", err)
	}
}

func TestSlotLostAndNoneLeft(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"max_slot_wal_keep_size": "1MB", "max_replication_slots": "1"}
	pg := ownServer(t, settings)
	ctx := t.Context()
	if _, err := migrations.Up(ctx, connect(t, pg.URL("postgres")), migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	db := open(t, pg.URL("postgres"))
	st := catalog.Setup{Slot: "one", Publication: "cdc_relay", Tables: []catalog.TableName{outbox}}
	if _, err := db.Init(ctx, st, func(catalog.Statement) {}); err != nil {
		t.Fatal(err)
	}
	st.Slot = "two"
	_, err := db.Init(ctx, st, func(catalog.Statement) {})
	wantFault(t, err, catalog.Configuration, "all 1 replication slots")

	before, _, err := db.Slot(ctx, "one")
	if err != nil || before.SafeWALBytes < 0 {
		t.Fatalf("slot %+v, %v, want a limit", before, err)
	}
	for range 4 {
		exec(t, pg, "SELECT pg_logical_emit_message(false, 'noise', '')", "SELECT pg_switch_wal()")
	}
	exec(t, pg, "CHECKPOINT")
	slot, _, err := db.Slot(ctx, "one")
	if err != nil || !slot.Lost() || slot.Restart != 0 || slot.Confirmed != before.Confirmed {
		t.Errorf("slot %+v, %v, want it lost", slot, err)
	}
	sp := catalog.Spec{Slot: "one", Publication: "cdc_relay", Tables: []catalog.TableSpec{{Name: outbox, Required: required}}}
	_, err = db.Check(ctx, sp)
	wantFault(t, err, catalog.Configuration, "slot one is lost (wal_status lost")
	wantFault(t, err, catalog.Configuration, "events committed after "+before.Confirmed.String())
	if pg.Major() >= 17 {
		wantFault(t, err, catalog.Configuration, "reason wal_removed")
	}
	_, err = db.Init(ctx, catalog.Setup{Slot: "one", Publication: "cdc_relay", Tables: []catalog.TableName{outbox}}, func(catalog.Statement) {})
	wantFault(t, err, catalog.Configuration, "slot one is lost")
}

// A fast shutdown ends the ordinary connection with 57P01 and refuses a new one
// with 57P03, while a walsender that has not confirmed everything holds it up.
func TestFastShutdownIsRecognised(t *testing.T) {
	t.Parallel()
	pg := ownServer(t, nil)
	ctx := t.Context()
	if _, err := migrations.Up(ctx, connect(t, pg.URL("postgres")), migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	db := open(t, pg.URL("postgres"))
	st := catalog.Setup{Slot: "s", Publication: "cdc_relay", Tables: []catalog.TableName{outbox}}
	if _, err := db.Init(ctx, st, func(catalog.Statement) {}); err != nil {
		t.Fatal(err)
	}
	slot, _, err := db.Slot(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := wal.Connect(ctx, wal.Config{URL: pg.URL("postgres"), Slot: "s", Publications: []string{"cdc_relay"}, WALSenderTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := conn.Start(ctx, wal.StartOptions{Confirmed: at(slot.Confirmed)})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, pg, "INSERT INTO public.outbox (aggregatetype, type) VALUES ('a', 'b')")
	stopped := make(chan error, 1)
	go func() { stopped <- pg.Stop(ctx, localstack.Fast) }()
	testenv.Until(t, 10*time.Second, func(ctx context.Context) error {
		if _, _, err = db.Slot(ctx, "s"); err == nil {
			return errors.New("still connected")
		}
		return nil
	})
	if !catalog.Terminated(err) {
		t.Errorf("the connection ended with %v, want terminated", err)
	}
	_, err = catalog.Open(ctx, catalog.Config{ConnString: pg.URL("postgres")})
	if !catalog.Refused(err) {
		t.Errorf("the next attempt ended with %v, want refused", err)
	}
	wantFault(t, err, catalog.Unreachable, "57P03")
	if err := stream.Close(); err != nil {
		t.Log(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
