// Package outboxtests runs packages outbox and outboxtest on real Postgres, and what they write through the relay.
package outboxtests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// patience is generous: it decides nothing but how long a failure takes.
const patience = 40 * time.Second

// newEnv returns a database with the table of the migrations.
func newEnv(t *testing.T, opts ...testenv.Option) *testenv.Env {
	t.Helper()
	env := testenv.New(t, opts...)
	must(t, migrateOutbox(t.Context(), env.URL))
	return env
}

func migrateOutbox(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	all, err := migrations.All()
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Name == "outbox" {
			_, err = conn.Exec(ctx, m.Up)
			return err
		}
	}
	return errors.New("no migration has the name outbox")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin opens a transaction on a connection of its own, which ends with the test.
func begin(t *testing.T, env *testenv.Env) pgx.Tx {
	t.Helper()
	return beginMode(t, env, pgx.QueryExecModeCacheStatement)
}

// beginMode is begin with the way in which pgx sends statements.
func beginMode(t *testing.T, env *testenv.Env, mode pgx.QueryExecMode) pgx.Tx {
	t.Helper()
	cfg, err := pgx.ParseConfig(env.URL)
	must(t, err)
	cfg.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	must(t, err)
	return tx
}

// beginSQL is begin for database/sql.
func beginSQL(t *testing.T, env *testenv.Env) *sql.Tx {
	t.Helper()
	cfg, err := pgx.ParseConfig(env.URL)
	must(t, err)
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// want compares what a query returns.
func want(t *testing.T, env *testenv.Env, expected, query string, args ...any) {
	t.Helper()
	if got := env.Text(query, args...); got != expected {
		t.Errorf("%s: got %s, want %s", query, got, expected)
	}
}

// fake is a test that may fail.
type fake struct {
	testing.TB

	failure string
}

type ended struct{}

func (f *fake) Helper()                  {}
func (f *fake) Context() context.Context { return f.TB.Context() }
func (f *fake) Fatalf(format string, args ...any) {
	f.failure = fmt.Sprintf(format, args...)
	panic(ended{})
}

// failure returns how an assertion ended its test; "" when it did not.
func failure(t *testing.T, assert func(t testing.TB)) (text string) {
	t.Helper()
	f := &fake{TB: t}
	defer func() {
		text = f.failure
		if r := recover(); r != nil {
			if _, ok := r.(ended); !ok {
				panic(r)
			}
		}
	}()
	assert(f)
	return ""
}
