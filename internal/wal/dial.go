package wal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// dialer returns the function that opens the socket of a replication
// connection. It is ours, so that everything that tunes the socket is in one
// place.
func dialer(walSenderTimeout time.Duration) pgconn.DialFunc {
	d := &net.Dialer{Control: socketControl(walSenderTimeout * 2 / 3)}
	return d.DialContext
}

// watched is a connection that knows when it last gave us a byte, above TLS.
// Measured at the socket and not per message, it costs nothing beside the
// system call.
type watched struct {
	net.Conn

	opened   time.Time
	lastRead atomic.Int64 // nanoseconds since opened
}

// watch is pgconn's AfterNetConnect hook.
func watch(_ context.Context, _ *pgconn.Config, c net.Conn) (net.Conn, error) {
	return &watched{Conn: c, opened: time.Now()}, nil
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.lastRead.Store(int64(time.Since(w.opened)))
	}
	return n, err
}

// now is the time on the connection's own monotonic clock.
func (w *watched) now() time.Duration { return time.Since(w.opened) }

// parseError keeps of pgconn's error what cannot hold a piece of the
// connection string: it is malformed, so anything may be the password.
func parseError(err error) error {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	reason, detail, _ := strings.Cut(text, " (")
	if reason == "failed to configure TLS" { // names a file or an sslmode
		reason += " (" + detail
	}
	return fmt.Errorf("database URL: %s; the form is postgres://user@host:5432/database?sslmode=verify-full", reason)
}

// connectError describes a failed attempt without pgconn's configuration, which
// holds the password.
func connectError(c *pgconn.Config, err error) error {
	op := fmt.Sprintf("connect to %s, database %s, as %s", hosts(c), c.Database, c.User)
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return newServerError(op, pe)
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	return &connectFailure{op: op, err: err}
}

// hosts lists the hosts of c once each, in the order of attempts.
func hosts(c *pgconn.Config) string {
	list := []string{net.JoinHostPort(c.Host, fmt.Sprint(c.Port))}
	for _, f := range c.Fallbacks {
		if h := net.JoinHostPort(f.Host, fmt.Sprint(f.Port)); h != list[len(list)-1] {
			list = append(list, h)
		}
	}
	return strings.Join(list, ",")
}

// connectFailure joins pgconn's errors, one per attempt, on one line.
type connectFailure struct {
	op  string
	err error
}

func (e *connectFailure) Error() string {
	return e.op + ": " + strings.Join(strings.Fields(e.err.Error()), " ")
}

func (e *connectFailure) Unwrap() error { return e.err }
