package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// initLock is the key of the advisory lock under which init works: "cdcrelay" in
// ASCII.
const initLock int64 = 0x63646372656c6179

// blockersSQL shows who keeps a statement of a plan waiting.
const blockersSQL = "SELECT pid, usename, application_name, state, xact_start, query FROM pg_stat_activity " +
	"WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start"

// Plan returns the statements that are missing on this server; see [NewPlan].
func (db *DB) Plan(ctx context.Context, s Setup) (Plan, error) {
	f, err := db.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return NewPlan(s, f)
}

// Init runs the statements that are missing and returns those it ran. It calls
// before with each one. Instances that do so at the same time take turns.
//
// A statement that fails leaves the earlier ones in place, and the next Init goes
// on from there.
func (db *DB) Init(ctx context.Context, s Setup, before func(Statement)) (Plan, error) {
	if _, err := db.Exec(ctx, "wait for another init to finish", "SELECT pg_advisory_lock($1)", initLock); err != nil {
		return nil, err
	}
	defer func() {
		// An error means that the session is over, and the lock with it.
		_, _ = db.Exec(context.WithoutCancel(ctx), "end init", "SELECT pg_advisory_unlock($1)", initLock)
	}()
	plan, err := db.Plan(ctx, s)
	if err != nil {
		return nil, err
	}
	for i, st := range plan {
		before(st)
		if err := db.run(ctx, st); err != nil {
			return plan[:i], err
		}
	}
	return plan, nil
}

func (db *DB) find(ctx context.Context, s Setup) (Found, error) {
	var f Found
	var err error
	if f.Server, err = db.Server(ctx); err != nil {
		return f, err
	}
	if _, err = f.Server.Check(); err != nil {
		return f, err
	}
	publication, found, err := db.Publication(ctx, s.Publication)
	if err != nil {
		return f, err
	}
	if found {
		f.Publication = &publication
	}
	slot, found, err := db.Slot(ctx, s.Slot)
	if err != nil {
		return f, err
	}
	if found {
		f.Slot = &slot
	}
	row, found, err := db.SlotRow(ctx, s.Slot)
	// The table may still be to come, when the plan is only printed.
	if err != nil && SQLState(err) != stateUndefinedTable {
		return f, err
	}
	if found {
		f.Row = &row
	}
	f.Snapshot, err = db.maySnapshot(ctx)
	return f, err
}

// maySnapshot reports whether the role may call pg_log_standby_snapshot, which
// came with 16.
func (db *DB) maySnapshot(ctx context.Context) (bool, error) {
	const sql = `
SELECT coalesce(bool_or(has_function_privilege(oid, 'execute')), false) FROM pg_catalog.pg_proc
 WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = 'pg_log_standby_snapshot'`
	got, err := Query(ctx, db, "read the rights of the role", pgx.RowTo[bool], sql)
	if err != nil {
		return false, err
	}
	return got[0], nil
}

// run executes one statement, which may be a whole transaction.
func (db *DB) run(ctx context.Context, st Statement) error {
	release, err := db.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	conn := db.conn.PgConn()
	if st.Waits {
		if _, err := conn.Exec(ctx, "SET statement_timeout = 0").ReadAll(); err != nil {
			return Explain(st.Do, err)
		}
		defer func() { _, _ = conn.Exec(context.WithoutCancel(ctx), "RESET statement_timeout").ReadAll() }()
	}
	started := time.Now()
	_, err = conn.Exec(ctx, st.SQL).ReadAll()
	if err == nil {
		return nil
	}
	if conn.TxStatus() != 'I' && !conn.IsClosed() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), "ROLLBACK").ReadAll()
	}
	return runError(st, err, time.Since(started))
}

func runError(st Statement, err error, waited time.Duration) error {
	err = Explain(st.Do, err)
	var e *CheckError
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Class == Privilege:
		e.Next = "it needs " + st.Needs + "; or let a DBA run: " + st.SQL
	case SQLState(err) == stateLockNotAvailable, e.Class == Unreachable && st.Waits:
		e.Next = "it waited " + waited.Round(time.Second).String() + " for transactions that are open; see " + blockersSQL + "; then try again"
	}
	return e
}
