// Package catalogtest runs packages catalog and migrations against real servers.
package catalogtest

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func open(t *testing.T, connString string) *catalog.DB {
	t.Helper()
	db, err := catalog.Open(t.Context(), catalog.Config{ConnString: connString})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

func connect(t *testing.T, connString string) *pgx.Conn {
	t.Helper()
	conn, err := catalog.Connect(t.Context(), catalog.Config{ConnString: connString})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// as returns the URL for another role, whose password is "secret".
func as(t *testing.T, connString, role string) string {
	t.Helper()
	u, err := url.Parse(connString)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "secret")
	return u.String()
}

var (
	outbox   = catalog.TableName{Schema: "public", Name: "outbox"}
	required = []string{"id", "payload", "aggregatetype", "aggregateid"}
)

func setup(env *testenv.Env) catalog.Setup {
	return catalog.Setup{Slot: env.Slot, Publication: env.Publication, Tables: []catalog.TableName{outbox}, Failover: true}
}

func spec(env *testenv.Env) catalog.Spec {
	return catalog.Spec{
		Slot: env.Slot, Publication: env.Publication,
		Tables: []catalog.TableSpec{{Name: outbox, Required: required}},
	}
}

// schema makes the tables but no publication.
func schema(t *testing.T, env *testenv.Env) {
	t.Helper()
	if _, err := migrations.Up(t.Context(), connect(t, env.URL), migrations.Options{Skip: []string{"publication"}}); err != nil {
		t.Fatal(err)
	}
}

// ready makes everything that the relay needs.
func ready(t *testing.T, env *testenv.Env) *catalog.DB {
	t.Helper()
	schema(t, env)
	db := open(t, env.URL)
	if _, err := db.Init(t.Context(), setup(env), func(catalog.Statement) {}); err != nil {
		t.Fatal(err)
	}
	return db
}

// wantFault wants a *catalog.CheckError of the class with a next step, whose text
// contains want.
func wantFault(t *testing.T, err error, class catalog.Class, want string) {
	t.Helper()
	var e *catalog.CheckError
	if !errors.As(err, &e) || e.Class != class || e.Next == "" || !strings.Contains(err.Error(), want) {
		t.Errorf("fault %v, want one of class %s with %q and a next step", err, class, want)
	}
}

// wantWarning wants exactly one warning of this check, with the text.
func wantWarning(t *testing.T, got []catalog.Warning, check, want string) {
	t.Helper()
	n := 0
	for _, w := range got {
		if w.Check == check {
			n++
			if !strings.Contains(w.String(), want) {
				t.Errorf("warning %s, want one with %q", w, want)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d warnings about the %s, want one with %q: %v", n, check, want, got)
	}
}

// replace puts the publication's name in place of %.
func replace(sql, publication string) string { return strings.ReplaceAll(sql, "%", publication) }
