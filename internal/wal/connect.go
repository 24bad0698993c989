// Package wal is the replication connection: it starts logical replication on
// a slot, decodes what the server sends, and tells the server what has been
// settled.
//
// One goroutine reads (Stream.Next) without deadlines; one goroutine of the
// stream's own writes everything that is sent, so that a reader held by
// back-pressure never costs the connection. Any other goroutine talks to them
// through atomics. The package knows nothing of tables, topics or records, and
// runs no SQL except the replication commands.
package wal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// ApplicationName is the application_name of the connection, whatever the
// connection string says: an operator keeps this one name out of
// synchronous_standby_names.
const ApplicationName = "cdc-relay"

// Limits and defaults of Config.
const (
	DefaultWALSenderTimeout = 10 * time.Second
	MinWALSenderTimeout     = time.Second

	// defaultConnectTimeout bounds one host's connection attempt when the URL sets
	// no connect_timeout: without it a black-holed host would hold the attempt for
	// as long as the kernel repeats its SYN.
	defaultConnectTimeout = 10 * time.Second
)

// Config says where to connect and what to stream.
type Config struct {
	// URL is a libpq connection string, as URL or keywords: several hosts,
	// sslmode and the rest, service files, passfile and PG* variables as in
	// libpq. Without sslmode it is libpq's "prefer", which falls back to plain
	// text.
	URL string
	// Password, if not empty, replaces the password of URL.
	Password string
	// Slot is the name of a logical replication slot with the pgoutput plugin:
	// 1 to 63 of a-z, 0-9 and underscore.
	Slot string
	// Publications are the publications to stream, by their exact names.
	Publications []string
	// WALSenderTimeout is set as wal_sender_timeout on this connection: the
	// server leaves after that long without a word from us, and we leave after
	// that long without an answer. Status goes out every second, or every twelfth
	// of it if that is less. Default 10s, at least 1s.
	WALSenderTimeout time.Duration

	// dial replaces the network in tests.
	dial pgconn.DialFunc
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// validate fills defaults in and reports every problem.
func (c *Config) validate() error {
	var errs []error
	if !slotName.MatchString(c.Slot) {
		errs = append(errs, fmt.Errorf("slot name %q: use 1 to 63 of a-z, 0-9 and underscore", c.Slot))
	}
	if len(c.Publications) == 0 {
		errs = append(errs, errors.New("no publication is named"))
	}
	if c.WALSenderTimeout == 0 {
		c.WALSenderTimeout = DefaultWALSenderTimeout
	}
	if c.WALSenderTimeout < MinWALSenderTimeout {
		errs = append(errs, fmt.Errorf("wal_sender_timeout %v: use at least %v", c.WALSenderTimeout, MinWALSenderTimeout))
	}
	return errors.Join(errs...)
}

// pinned are the settings of the connection that decide what the server's
// bytes look like. They override the role's, the database's and the URL's, so
// that the same row is always the same text. timezone and search_path are
// among them because the text of timestamptz and of the reg* types depends on
// them.
var pinned = map[string]string{
	"client_encoding":    "UTF8",
	"datestyle":          "ISO, MDY",
	"intervalstyle":      "postgres",
	"timezone":           "UTC",
	"extra_float_digits": "3",
	"bytea_output":       "hex",
	"search_path":        "pg_catalog",
	// A missing publication is told by a warning from Postgres 18 on: at "error"
	// the server would swallow it, and rows with it.
	"client_min_messages": "warning",
	// The server's own limits are not meant for a connection that waits.
	"statement_timeout": "0",
}

// parse turns the connection string into pgconn's configuration. Its errors
// hold nothing of the string: a malformed one cannot be redacted reliably.
func (c *Config) parse() (*pgconn.Config, error) {
	pc, err := pgconn.ParseConfig(c.URL)
	if err != nil {
		return nil, parseError(err)
	}
	if c.Password != "" {
		pc.Password = c.Password
	}
	if pc.ConnectTimeout == 0 {
		pc.ConnectTimeout = defaultConnectTimeout
	}
	for name, value := range pinned {
		pin(pc.RuntimeParams, name, value)
	}
	pin(pc.RuntimeParams, "replication", "database")
	pin(pc.RuntimeParams, "wal_sender_timeout", strconv.FormatInt(c.WALSenderTimeout.Milliseconds(), 10))
	pc.RuntimeParams["application_name"] = ApplicationName
	dial := c.dial
	if dial == nil {
		dial = dialer(c.WALSenderTimeout)
	}
	pc.DialFunc = watch(dial)
	return pc, nil
}

// pin sets a parameter in place of every spelling of its name: the server's
// names know no case, and of two it would take either.
func pin(params map[string]string, name, value string) {
	maps.DeleteFunc(params, func(n, _ string) bool { return strings.EqualFold(n, name) })
	params[name] = value
}

// Conn is a replication connection that does not stream yet. It is not safe
// for concurrent use.
type Conn struct {
	config Config
	pg     *pgconn.PgConn
	stream bool // a Stream owns pg
}

// Connect opens a replication connection. Errors name host, user and database
// and never a password; one that the server sent is a *ServerError.
func Connect(ctx context.Context, c Config) (*Conn, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	pc, err := c.parse()
	if err != nil {
		return nil, err
	}
	pg, err := pgconn.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, connectError(pc, err)
	}
	return &Conn{config: c, pg: pg}, nil
}

// PID is the process id of the server's end, as in
// pg_replication_slots.active_pid and pg_stat_replication.pid.
func (c *Conn) PID() uint32 { return c.pg.PID() }

// Close ends the connection, waiting at most a second to say so. After Start it
// does nothing: the Stream owns the connection.
func (c *Conn) Close() error {
	if c.stream {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return c.pg.Close(ctx)
}

// System is the answer to IDENTIFY_SYSTEM.
type System struct {
	SystemID string
	Timeline uint32
	WALEnd   pglogrepl.LSN // flushed so far
	Database string
}

// IdentifySystem asks which server this is. What it says holds for as long as
// the connection, except WALEnd, which is a moment's.
func (c *Conn) IdentifySystem(ctx context.Context) (System, error) {
	r, err := pglogrepl.IdentifySystem(ctx, c.pg)
	if err != nil {
		return System{}, serverError("identify the system", err)
	}
	return System{SystemID: r.SystemID, Timeline: uint32(r.Timeline), WALEnd: r.XLogPos, Database: r.DBName}, nil
}

// StartOptions are what Start needs to know about slot and server.
type StartOptions struct {
	// Confirmed returns the slot's confirmed_flush_lsn: what status updates report
	// until something has been settled. It is called once the slot is ours: what was
	// read before may be of another holder's time, and a lower position would take
	// the slot back.
	Confirmed func(context.Context) (pglogrepl.LSN, error)
	// ServerVersion is server_version_num. Logical messages are asked for from
	// 140000 on.
	ServerVersion int
	// BeforeRead, if not nil, is called by the goroutine that reads whenever
	// everything received has been returned by Next and it turns to the socket.
	BeforeRead func()
}

// Start acquires the slot and begins to stream from its own position. The
// server answers at once, also when the slot is held (ServerError.SlotBusy).
// After an error the connection is closed; after success it belongs to the
// Stream.
func (c *Conn) Start(ctx context.Context, o StartOptions) (*Stream, error) {
	// 0/0 stands for the slot's own position. Any other start could lie on another
	// timeline, where the server would skip what precedes it without a word.
	err := pglogrepl.StartReplication(ctx, c.pg, c.config.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: pluginArgs(c.config.Publications, o.ServerVersion),
	})
	if err != nil {
		_ = c.Close()
		return nil, serverError("start replication on slot "+c.config.Slot, err)
	}
	s, err := c.take(ctx, o.Confirmed)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	s.socket.gather.before = o.BeforeRead
	c.stream = true
	return s, nil
}

// take makes the connection, which has the slot, a stream.
func (c *Conn) take(ctx context.Context, confirmed func(context.Context) (pglogrepl.LSN, error)) (*Stream, error) {
	at, err := confirmed(ctx)
	if err != nil {
		return nil, err
	}
	if at == 0 {
		return nil, errors.New("start replication: the slot's confirmed position is unknown")
	}
	return newStream(c.pg, c.config.WALSenderTimeout, at)
}

// pluginArgs returns the options of pgoutput: protocol version 1, so that only
// committed transactions arrive, whole and in commit order; text form; messages
// where the server knows the option.
func pluginArgs(publications []string, serverVersion int) []string {
	args := []string{
		"proto_version '1'",
		"publication_names " + quoteLiteral(quoteIdentifiers(publications)),
	}
	if serverVersion >= 140000 {
		args = append(args, "messages 'true'")
	}
	return args
}

// quoteIdentifiers returns a list as pgoutput parses it (SplitIdentifierString).
func quoteIdentifiers(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = `"` + strings.ReplaceAll(n, `"`, `""`) + `"`
	}
	return strings.Join(quoted, ",")
}

// quoteLiteral quotes for the replication command's scanner, which knows no
// backslash escapes.
func quoteLiteral(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}
