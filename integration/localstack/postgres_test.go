package localstack_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func startPostgres(t *testing.T, cfg localstack.PostgresConfig) *localstack.Postgres {
	t.Helper()
	began := time.Now()
	server, err := localstack.StartPostgres(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("PostgreSQL %d is ready after %v", server.Major(), time.Since(began))
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(server.DataDir()); !os.IsNotExist(err) {
			t.Errorf("data directory after Close: %v", err)
		}
	})
	return server
}

// query returns the one value that a statement yields.
func query(t *testing.T, url, sql string) (string, error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.Background())
	var value string
	err = conn.QueryRow(t.Context(), sql).Scan(&value)
	return value, err
}

func wantValue(t *testing.T, url, sql, want string) {
	t.Helper()
	if got, err := query(t, url, sql); err != nil || got != want {
		t.Errorf("%s: got %q, %v, want %q", sql, got, err, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPostgresMajors(t *testing.T) {
	for _, major := range localstack.PostgresMajors() {
		server := startPostgres(t, localstack.PostgresConfig{Major: major, NoSync: true})
		wantValue(t, server.URL("postgres"), "SELECT (current_setting('server_version_num')::int / 10000)::text", fmt.Sprint(major))
		wantValue(t, server.SocketURL("postgres"), "SHOW wal_level", "logical")
		wantValue(t, server.URL("postgres"), "SELECT slot_name::text FROM pg_create_logical_replication_slot('s', 'pgoutput')", "s")
	}
}

func TestPostgresStopsAndStarts(t *testing.T) {
	server := startPostgres(t, localstack.PostgresConfig{})
	wantValue(t, server.URL("postgres"), "SHOW fsync", "on")
	for _, mode := range []localstack.StopMode{localstack.Smart, localstack.Fast, localstack.Immediate} {
		pid := server.PID()
		must(t, server.Stop(t.Context(), mode))
		if got := server.PID(); got != 0 || pid == 0 {
			t.Errorf("got process %d after Stop, %d before", got, pid)
		}
		if _, err := query(t, server.URL("postgres"), "SELECT ''"); err == nil {
			t.Error("a stopped server answers")
		}
		must(t, server.Start(t.Context()))
		must(t, server.Start(t.Context()))
		wantValue(t, server.URL("postgres"), "SELECT 'back'", "back")
	}
	must(t, server.Restart(t.Context()))
	wantValue(t, server.URL("postgres"), "SELECT 'back'", "back")
}

func TestPostgresSettings(t *testing.T) {
	ca := testenv.NewAuthority(t)
	cert, key := ca.Issue("postgres")
	server := startPostgres(t, localstack.PostgresConfig{
		NoSync:   true,
		Settings: map[string]string{"wal_level": "replica", "search_path": "it's"},
		HBA:      []string{"hostssl all all 127.0.0.1/32 cert"},
		TLS:      &localstack.TLSFiles{CertFile: cert, KeyFile: key, CAFile: ca.CAFile},
	})
	wantValue(t, server.URL("postgres"), "SHOW fsync", "off")
	wantValue(t, server.URL("postgres"), "SHOW wal_level", "replica")
	wantValue(t, server.URL("postgres"), "SHOW search_path", "it's")
	secure := strings.Replace(server.URL("postgres"), "sslmode=disable", "sslmode=verify-full&sslrootcert="+ca.CAFile, 1)
	if _, err := query(t, secure, "SELECT ''"); err == nil {
		t.Error("the line of pg_hba.conf that asks for a certificate does not win")
	}
	cert, key = ca.Issue("postgres")
	wantValue(t, secure+"&sslcert="+cert+"&sslkey="+key, "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()", "true")
}

func TestPostgresSaysWhyItDoesNotStart(t *testing.T) {
	_, err := localstack.StartPostgres(t.Context(), localstack.PostgresConfig{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("got %v, want the name of the setting", err)
	}
	_, err = localstack.StartPostgres(t.Context(), localstack.PostgresConfig{Major: 9})
	if err == nil || !strings.Contains(err.Error(), "18 17 16 15 14") {
		t.Errorf("got %v, want the known versions", err)
	}
}
