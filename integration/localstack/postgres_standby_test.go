package localstack_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func startStandby(t *testing.T, primary *localstack.Postgres, cfg localstack.StandbyConfig) *localstack.Postgres {
	t.Helper()
	standby, err := primary.StartStandby(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Error(err)
		}
	})
	return standby
}

// run executes statements, one after the other.
func run(t *testing.T, server *localstack.Postgres, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	must(t, err)
	defer conn.Close(context.Background())
	for _, sql := range statements {
		_, err := conn.Exec(t.Context(), sql)
		must(t, err)
	}
}

// becomes waits until a query yields the value.
func becomes(t *testing.T, server *localstack.Postgres, sql, want string) {
	t.Helper()
	testenv.Until(t, 40*time.Second, func(context.Context) error {
		got, err := query(t, server.URL("postgres"), sql)
		if err == nil && got != want {
			err = fmt.Errorf("%s is %s", sql, got)
		}
		return err
	})
}

const timeline = `SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)`

// A standby of the oldest and of the newest version follows, refuses to write, and is a primary of its own after its
// promotion; from 17 on with the failover slots.
func TestStandby(t *testing.T) {
	for _, major := range []int{14, 18} {
		primary := startPostgres(t, localstack.PostgresConfig{Major: major, NoSync: true})
		run(t, primary, `CREATE TABLE t AS SELECT 1 AS n`)
		standby := startStandby(t, primary, localstack.StandbyConfig{Settings: map[string]string{"work_mem": "5MB"}})
		if standby.Addr() == primary.Addr() || standby.Major() != major {
			t.Errorf("standby of version %d at %s, primary at %s", standby.Major(), standby.Addr(), primary.Addr())
		}
		wantValue(t, standby.URL("postgres"), `SHOW work_mem`, "5MB")
		run(t, primary, `INSERT INTO t VALUES (2)`)
		becomes(t, standby, `SELECT count(*)::text FROM t`, "2")
		if _, err := query(t, standby.URL("postgres"), `INSERT INTO t VALUES (3) RETURNING ''`); err == nil {
			t.Error("a standby takes rows")
		}
		if major >= 17 {
			run(t, primary, `SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, false, true)`, `SELECT pg_log_standby_snapshot()`,
				`SELECT pg_replication_slot_advance('s', pg_current_wal_lsn())`)
			becomes(t, standby, `SELECT (synced AND NOT temporary)::text FROM pg_replication_slots WHERE slot_name = 's'`, "true")
		}
		must(t, primary.Kill())
		must(t, standby.Promote(t.Context()))
		run(t, standby, `INSERT INTO t VALUES (3)`)
		wantValue(t, standby.URL("postgres"), timeline, "00000002")
		must(t, primary.Start(t.Context()))
		wantValue(t, primary.URL("postgres"), timeline, "00000001")
		wantValue(t, primary.URL("postgres"), `SELECT count(*)::text FROM t`, "2")
		must(t, primary.Close())
		must(t, standby.Close())
	}
}

// A killed server has lost nothing that it had answered for, and can be started again.
func TestPostgresKill(t *testing.T) {
	server := startPostgres(t, localstack.PostgresConfig{NoSync: true})
	run(t, server, `CREATE TABLE t AS SELECT 1 AS n`)
	must(t, server.Kill())
	must(t, server.Kill())
	if server.PID() != 0 {
		t.Error("a killed server runs")
	}
	must(t, server.Start(t.Context()))
	wantValue(t, server.URL("postgres"), `SELECT count(*)::text FROM t`, "1")
}

// A snapshot brings back what was there when it was taken, of a running server and of a stopped one, with the same
// system identifier and timeline.
func TestPostgresSnapshot(t *testing.T) {
	server := startPostgres(t, localstack.PostgresConfig{NoSync: true})
	run(t, server, `CREATE TABLE t AS SELECT 1 AS n`)
	const identity = `SELECT system_identifier::text || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system()`
	before, err := query(t, server.URL("postgres"), identity)
	must(t, err)
	snapshot, err := server.Snapshot()
	must(t, err)
	if err := server.Restore(snapshot); err == nil || !strings.Contains(err.Error(), "running") {
		t.Errorf("Restore of a running server: %v", err)
	}
	run(t, server, `INSERT INTO t VALUES (2)`)
	for range 2 {
		must(t, server.Stop(t.Context(), localstack.Fast))
		must(t, server.Restore(snapshot))
		must(t, server.Start(t.Context()))
		wantValue(t, server.URL("postgres"), `SELECT count(*)::text FROM t`, "1")
		wantValue(t, server.URL("postgres"), identity, before)
		run(t, server, `INSERT INTO t VALUES (3)`)
	}
	must(t, server.Stop(t.Context(), localstack.Fast))
	snapshot, err = server.Snapshot()
	must(t, err)
	must(t, server.Restore(snapshot))
	must(t, server.Start(t.Context()))
	wantValue(t, server.URL("postgres"), `SELECT count(*)::text FROM t`, "2")
}
