package migrations

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options choose what the runner does. The zero value means every migration.
type Options struct {
	// Skip names migrations that are not wanted, such as outbox where another
	// table is configured. They are neither run nor printed.
	Skip []string
	// Only names the migrations that are wanted, as Skip does; empty means all. It is for
	// a database that holds one part, as that of a consumer does with cdc_relay_inbox.
	// [Down] takes back none but these.
	Only []string
	// Force lets [Down] drop what still holds rows.
	Force bool
}

// leavesOut reports whether the options leave out the migration of that name.
func (o Options) leavesOut(name string) bool {
	return slices.Contains(o.Skip, name) || len(o.Only) > 0 && !slices.Contains(o.Only, name)
}

// State says how far a migration is.
type State string

// The states of a migration.
const (
	Pending State = "pending"
	Applied State = "applied"
	Skipped State = "skipped" // left out by Options
	Foreign State = "foreign" // what it creates was there before; left alone
)

// Step is a migration and its state in one database.
type Step struct {
	Migration
	State     State
	AppliedAt time.Time // zero unless Applied
}

// lockKey is the key of the advisory lock under which migrations run: "cdcmigra"
// in ASCII.
const lockKey int64 = 0x6364636d69677261

const versionTableSQL = `CREATE TABLE IF NOT EXISTS public.cdc_relay_migrations (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)`

// Status returns every migration with its state. It changes nothing and needs no
// more than the right to read public.cdc_relay_migrations, where that exists.
func Status(ctx context.Context, conn *pgx.Conn, o Options) ([]Step, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	applied, err := readApplied(ctx, conn)
	if err != nil {
		return nil, err
	}
	steps := make([]Step, len(all))
	for i, m := range all {
		steps[i] = Step{Migration: m, State: Pending}
		if a, ok := applied[m.Version]; ok {
			if a.checksum != m.Checksum() {
				return nil, &ChangedError{Migration: m}
			}
			steps[i].State, steps[i].AppliedAt = Applied, a.at
			continue
		}
		if o.leavesOut(m.Name) {
			steps[i].State = Skipped
			continue
		}
		there, err := exists(ctx, conn, m.creates)
		if err != nil {
			return nil, err
		}
		if there {
			steps[i].State = Foreign
		}
	}
	return steps, nil
}

// ChangedError says that a migration was applied with other content than it has in
// this program: it was edited, or another version of cdc-relay applied it.
type ChangedError struct{ Migration Migration }

// Error names the migration and the ways on.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("migration %s was applied in another form: use the cdc-relay version that applied it, "+
		"or bring the schema and public.cdc_relay_migrations in line by hand", e.Migration.ID())
}

type appliedRow struct {
	checksum string
	at       time.Time
}

func readApplied(ctx context.Context, conn *pgx.Conn) (map[int]appliedRow, error) {
	there, err := exists(ctx, conn, object{"table", "public.cdc_relay_migrations"})
	if err != nil || !there {
		return nil, err
	}
	rows, err := conn.Query(ctx, "SELECT version, checksum, applied_at FROM public.cdc_relay_migrations")
	if err != nil {
		return nil, fmt.Errorf("read public.cdc_relay_migrations: %w", err)
	}
	applied := map[int]appliedRow{}
	var version int
	var a appliedRow
	_, err = pgx.ForEachRow(rows, []any{&version, &a.checksum, &a.at}, func() error {
		applied[version] = a
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read public.cdc_relay_migrations: %w", err)
	}
	return applied, nil
}

func exists(ctx context.Context, conn *pgx.Conn, o object) (bool, error) {
	sql := "SELECT pg_catalog.to_regclass($1) IS NOT NULL"
	if o.kind == "publication" {
		sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $1)"
	}
	var there bool
	if err := conn.QueryRow(ctx, sql, o.name).Scan(&there); err != nil {
		return false, fmt.Errorf("look for %s %s: %w", o.kind, o.name, err)
	}
	return there, nil
}

// Up runs the pending migrations in ascending order, each in a transaction of its
// own, and returns those it ran. Runners that work at the same time take turns.
func Up(ctx context.Context, conn *pgx.Conn, o Options) ([]Migration, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	var ran []Migration
	for _, m := range all {
		did, err := locked(ctx, conn, o, m, Pending, func(tx pgx.Tx) error {
			_, err := tx.Conn().PgConn().Exec(ctx, m.up()).ReadAll()
			return err
		})
		if err != nil {
			return ran, fmt.Errorf("apply migration %s: %w", m.ID(), err)
		}
		if did {
			ran = append(ran, m)
		}
	}
	return ran, nil
}

// Down takes back the steps newest applied migrations, newest first, each in a
// transaction of its own, and returns those it took back. What still holds rows
// is refused unless o.Force is set.
func Down(ctx context.Context, conn *pgx.Conn, steps int, o Options) ([]Migration, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	if err := refuseNewer(ctx, conn, len(all)); err != nil {
		return nil, err
	}
	slices.Reverse(all)
	var ran []Migration
	for _, m := range all {
		if len(ran) == steps {
			break
		}
		if len(o.Only) > 0 && !slices.Contains(o.Only, m.Name) {
			continue
		}
		did, err := locked(ctx, conn, o, m, Applied, func(tx pgx.Tx) error {
			if o.Force {
				if _, err := tx.Exec(ctx, "SET LOCAL cdc_relay.force = 'on'"); err != nil {
					return err
				}
			}
			_, err := tx.Conn().PgConn().Exec(ctx, m.down()).ReadAll()
			return err
		})
		if err != nil {
			return ran, fmt.Errorf("take back migration %s: %w", m.ID(), err)
		}
		if did {
			ran = append(ran, m)
		}
	}
	return ran, nil
}

// refuseNewer refuses to take anything back below migrations that this program
// does not have.
func refuseNewer(ctx context.Context, conn *pgx.Conn, newest int) error {
	applied, err := readApplied(ctx, conn)
	if err != nil {
		return err
	}
	for version := range applied {
		if version > newest {
			return fmt.Errorf("take back migrations: a newer cdc-relay has applied migration %03d; use that version", version)
		}
	}
	return nil
}

// locked runs do in a transaction that holds the advisory lock, if the migration
// is in the wanted state then, and reports whether it did.
func locked(ctx context.Context, conn *pgx.Conn, o Options, m Migration, want State, do func(pgx.Tx) error) (bool, error) {
	did := false
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockKey); err != nil {
			return err
		}
		steps, err := Status(ctx, conn, o)
		if err != nil || steps[m.Version-1].State != want {
			return err
		}
		did = true
		return do(tx)
	})
	return did && err == nil, err
}
