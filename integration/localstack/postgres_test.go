package localstack_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

func TestPostgresOfEveryMajorVersion(t *testing.T) {
	for _, major := range localstack.PostgresMajors() {
		began := time.Now()
		server, err := localstack.StartPostgres(t.Context(), localstack.PostgresConfig{Major: major, Progress: func(s string) { t.Log(s) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("PostgreSQL %d ready after %v", major, time.Since(began))
		conn, err := pgx.Connect(context.Background(), server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		var level, version string
		if err := conn.QueryRow(t.Context(), "SELECT current_setting('wal_level'), version()").Scan(&level, &version); err != nil {
			t.Fatal(err)
		}
		t.Log(level, version)
		conn.Close(context.Background())
		began = time.Now()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("restart %v", time.Since(began))
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
