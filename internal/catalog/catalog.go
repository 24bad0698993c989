// Package catalog is everything cdc-relay asks of PostgreSQL over an ordinary
// connection: server facts, tables, publication, slot and the relay's own state
// row, the checks over them, and the SQL that sets them up. No other package
// contains catalog SQL; package deadletter runs its own through [Query].
//
// It does not stream (that is package wal) and it does not reconnect: a [DB]
// whose connection is lost answers every call with an error of class
// [Unreachable], and the caller opens a new one.
//
// Every catalog name is qualified and every statement stands alone, so nothing
// depends on the role's search_path or on state left in the session.
package catalog

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ApplicationName is the application_name of every connection that cdc-relay
// opens, ordinary and replication. It is fixed and documented, so that an
// operator can name it in pg_stat_activity queries and keep it out of
// synchronous_standby_names.
const ApplicationName = "cdc-relay"

// DefaultStatementTimeout bounds each catalog statement unless
// [Config.StatementTimeout] says otherwise.
const DefaultStatementTimeout = 5 * time.Second

// answerMargin is how long after the statement timeout an answer is waited for
// before the server is taken for unreachable.
const answerMargin = time.Second

// DefaultConnectTimeout bounds a connection attempt to one address when the
// connection string has no connect_timeout.
const DefaultConnectTimeout = 10 * time.Second

// Config says how to reach the database.
type Config struct {
	// ConnString is a libpq URL or keyword/value string. What it leaves out
	// comes from the PG* variables, as in libpq; "" takes everything from them.
	ConnString string
	// Password, when not empty, replaces the one in ConnString, PGPASSWORD or
	// the password file.
	Password string
	// StatementTimeout is the server's limit for each statement, 0 means
	// [DefaultStatementTimeout]. A call returns at most a second later, also when
	// the server has vanished. Creating a slot is exempt: it waits for the
	// transactions that are running.
	StatementTimeout time.Duration
}

// DB is one ordinary connection. It is safe for concurrent use: calls take
// turns. An error of class [Unreachable] means that the connection, or the
// attempt to get one, is gone; see [DB.Closed].
type DB struct {
	conn  *pgx.Conn
	limit time.Duration // of one call
	turn  chan struct{} // holds one token; whoever has it may use conn
	gone  atomic.Bool   // what conn said at the end of the last turn
}

// Connect opens the connection that [Open] wraps. It is for callers that run
// SQL of their own over it, such as package migrations. The error is a
// *[CheckError] and never contains a password.
func Connect(ctx context.Context, cfg Config) (*pgx.Conn, error) {
	pc, err := parse(cfg)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, connectError(err)
	}
	// Some servers end idle sessions by a setting of the role or database. It is
	// switched off here and not as a start-up parameter, which a server that does
	// not know the setting would refuse before its version could be told.
	_, err = conn.Exec(ctx, `SELECT pg_catalog.set_config('idle_session_timeout', '0', false)
		WHERE pg_catalog.current_setting('idle_session_timeout', true) IS NOT NULL`)
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, Explain("prepare the session", err)
	}
	return conn, nil
}

// Open connects to the database. The error is a *[CheckError].
func Open(ctx context.Context, cfg Config) (*DB, error) {
	conn, err := Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	db := &DB{conn: conn, limit: cfg.statementTimeout() + answerMargin, turn: make(chan struct{}, 1)}
	db.turn <- struct{}{}
	return db, nil
}

func (c Config) statementTimeout() time.Duration {
	if c.StatementTimeout == 0 {
		return DefaultStatementTimeout
	}
	return c.StatementTimeout
}

// ValidateConnString reads a connection string without connecting. The error is a
// *[CheckError] that repeats nothing of the string: a part that was taken for the
// port, say, may be one of the password.
func ValidateConnString(connString string) error {
	_, err := parse(Config{ConnString: connString})
	return err
}

func parse(cfg Config) (*pgx.ConnConfig, error) {
	pc, err := pgx.ParseConfig(cfg.ConnString)
	if err != nil {
		return nil, connStringError(err)
	}
	if strayPassword(cfg.ConnString, pc) {
		return nil, connStringError(errStrayPassword)
	}
	if cfg.Password != "" {
		pc.Password = cfg.Password
	}
	if pc.ConnectTimeout == 0 {
		pc.ConnectTimeout = DefaultConnectTimeout
	}
	for name, value := range pinned {
		pin(pc.RuntimeParams, name, value)
	}
	pin(pc.RuntimeParams, "application_name", ApplicationName)
	pin(pc.RuntimeParams, "statement_timeout", strconv.FormatInt(cfg.statementTimeout().Milliseconds(), 10))
	// No prepared statement outlives its call, so nothing breaks when the table
	// definitions change under a long connection.
	pc.DefaultQueryExecMode = pgx.QueryExecModeExec
	pc.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {}
	return pc, nil
}

// pinned are the settings of every ordinary connection, over those of role, database
// and connection string. Start-up parameters come before all of these.
var pinned = map[string]string{
	// A commit is on the server's own disk when it is answered, and waits for no
	// standby. off, which a role may have, would let a crash undo a dead letter that
	// the relay has given its row up for. on would have the relay wait for itself where
	// synchronous_standby_names names it, if only by *: the standby that the commit
	// waits for is the walsender whose stream the relay reads only after the commit.
	"synchronous_commit": "local",
	// Rows that somebody else has committed meanwhile are seen.
	"default_transaction_isolation": "read committed",
	// What bytes, times and numbers look like: the driver expects these forms, and a
	// value read from a table is to be the same text as on the stream.
	"client_encoding":    "UTF8",
	"bytea_output":       "hex",
	"datestyle":          "ISO, MDY",
	"intervalstyle":      "postgres",
	"timezone":           "UTC",
	"extra_float_digits": "3",
	"search_path":        "pg_catalog",
}

// pin sets a parameter in place of every spelling of its name: the server's names
// know no case, and of two it would take either.
func pin(params map[string]string, name, value string) {
	maps.DeleteFunc(params, func(n, _ string) bool { return strings.EqualFold(n, name) })
	params[name] = value
}

// strayPassword reports that a part of the password was taken for host or
// database, since a character in it is not percent-encoded. The part would show
// up in errors.
func strayPassword(connString string, pc *pgx.ConnConfig) bool {
	if !strings.HasPrefix(connString, "postgres://") && !strings.HasPrefix(connString, "postgresql://") {
		return false
	}
	stray := strings.Contains(pc.Host, "@") || strings.Contains(pc.Database, "@")
	for _, f := range pc.Fallbacks {
		stray = stray || strings.Contains(f.Host, "@")
	}
	return stray
}

// Close ends the connection. It waits for a call that is running.
func (db *DB) Close(ctx context.Context) error {
	release, err := db.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	return db.conn.Close(ctx)
}

// Closed reports whether the last call found the connection gone, or closed it,
// so that a new [DB] is needed.
func (db *DB) Closed() bool { return db.gone.Load() }

// Encrypted reports whether the connection uses TLS.
func (db *DB) Encrypted() bool {
	_, ok := db.conn.PgConn().Conn().(*tls.Conn)
	return ok
}

func (db *DB) take(ctx context.Context) (release func(), err error) {
	select {
	case <-db.turn:
		return func() {
			db.gone.Store(db.conn.IsClosed())
			db.turn <- struct{}{}
		}, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the catalog connection: %w", ctx.Err())
	}
}

// Role is the role that the connection was opened for.
func (db *DB) Role() string { return db.conn.Config().User }

// Exec runs one statement and returns how many rows it has changed; what says what it
// is for, such as "read slot x". The error is a *[CheckError] or the context's own.
func (db *DB) Exec(ctx context.Context, what, sql string, args ...any) (int64, error) {
	release, err := db.take(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, db.limit)
	defer cancel()
	tag, err := db.conn.Exec(ctx, sql, args...)
	if err != nil {
		return 0, Explain(what, err)
	}
	return tag.RowsAffected(), nil
}

// Query runs one statement and collects one T per row; see [DB.Exec].
func Query[T any](ctx context.Context, db *DB, what string, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	release, err := db.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, db.limit)
	defer cancel()
	return collect(ctx, db.conn, what, scan, sql, args)
}

// QueryWithin is [Query] for a statement that moves much data: it may take that much
// longer than others.
func QueryWithin[T any](ctx context.Context, db *DB, longer time.Duration, what string, scan pgx.RowToFunc[T], sql string, args ...any,
) ([]T, error) {
	release, err := db.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	limit := db.limit + longer
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn := db.conn.PgConn()
	set := "SET statement_timeout = " + strconv.FormatInt((limit-answerMargin).Milliseconds(), 10)
	if _, err := conn.Exec(within, set).ReadAll(); err != nil {
		return nil, Explain(what, err)
	}
	got, err := collect(within, db.conn, what, scan, sql, args)
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.limit)
	defer cancel()
	_, _ = conn.Exec(after, "RESET statement_timeout").ReadAll() // a time-out ends the connection
	return got, err
}

func collect[T any](ctx context.Context, conn *pgx.Conn, what string, scan pgx.RowToFunc[T], sql string, args []any) ([]T, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, Explain(what, err)
	}
	got, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, Explain(what, err)
	}
	return got, nil
}
