package securitytest

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// prepare runs what "init --print" shows a DBA, grants and all, for a role of its own, and returns the role's URL.
func (p *postgres) prepare(t *testing.T, env *testenv.Env) (role, roleURL string) {
	t.Helper()
	role = "r" + env.Slot
	printed := env.Run("init", "--print", "--config", env.WriteConfig(testenv.Settings{"postgres.url": nil}))
	if printed.Code != 0 {
		t.Fatalf("init --print exits with %d: %s", printed.Code, printed.Stderr)
	}
	setUp, grants, found := strings.Cut(printed.Stdout, "-- The role that runs cdc-relay")
	if !found {
		t.Fatalf("no grants in:\n%s", printed.Stdout)
	}
	conn := env.Conn().PgConn()
	run := func(sql string) {
		if _, err := conn.Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	// Like psql, one statement at a time: a slot is not created in a transaction that has written.
	for sql := range strings.SplitSeq(setUp, ";\n\n") {
		run(strings.TrimPrefix(sql, "\\set ON_ERROR_STOP on\n"))
	}
	needed, _, _ := strings.Cut(grants, "-- Of use, but not needed")
	fill := strings.NewReplacer(`"cdc_relay"`, role, `"your_database"`, env.Slot, "'...'", "'"+password+"'")
	count := 0
	for line := range strings.Lines(needed) {
		if sql, ok := strings.CutPrefix(line, "--   "); ok {
			run(fill.Replace(sql))
			count++
		}
	}
	if count != 6 {
		t.Errorf("ran %d grants of:\n%s", count, grants)
	}
	return role, as(t, env.URL, role, "sslmode=require")
}

// minimum: a role with no more than what is printed relays rows that it cannot even read.
func (p *postgres) minimum(t *testing.T) {
	t.Parallel()
	env := p.env(t)
	env.Exec("REVOKE ALL ON DATABASE " + env.Slot + " FROM PUBLIC")
	env.Exec("REVOKE ALL ON SCHEMA public FROM PUBLIC")
	role, roleURL := p.prepare(t, env)
	relays(t, env, testenv.Settings{"postgres.url": roleURL}, func(*testenv.Relay) {
		var reads bool
		if err := env.Conn().QueryRow(t.Context(), "SELECT has_table_privilege($1, 'public.outbox', 'SELECT')", role).Scan(&reads); err != nil || reads {
			t.Errorf("the role reads the outbox: %t, %v", reads, err)
		}
	})
}

// lacks: each right that is missing is named, with the SQL that gives it.
func (p *postgres) lacks(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ revoke, next string }{
		"replication": {`ALTER ROLE "ROLE" NOREPLICATION`, `ALTER ROLE "ROLE" REPLICATION`},
		"connect":     {`REVOKE CONNECT ON DATABASE "DB" FROM PUBLIC, "ROLE"`, `GRANT CONNECT ON DATABASE "DB" TO "ROLE"`},
		"schema":      {`REVOKE USAGE ON SCHEMA public FROM PUBLIC, "ROLE"`, `GRANT USAGE ON SCHEMA public TO "ROLE"`},
		"read state":  {`REVOKE SELECT ON public.cdc_relay_slots FROM "ROLE"`, `GRANT SELECT, INSERT, UPDATE ON public.cdc_relay_slots TO "ROLE"`},
		"write state": {`REVOKE UPDATE ON public.cdc_relay_slots FROM "ROLE"`, `GRANT SELECT, INSERT, UPDATE ON public.cdc_relay_slots TO "ROLE"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := p.env(t)
			role, roleURL := p.prepare(t, env)
			fill := strings.NewReplacer(`"ROLE"`, `"`+role+`"`, "DB", env.Slot)
			env.Exec(fill.Replace(tt.revoke))
			exits(t, env, testenv.Settings{"postgres.url": roleURL}, 77, "42501", fill.Replace(tt.next))
		})
	}
}
