package wal

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
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

// watched is a connection that knows when it last gave us a byte. Measured at
// the socket and not per message, it costs nothing beside the system call. It is
// below TLS, since channel binding needs the TLS connection itself.
type watched struct {
	net.Conn

	opened   time.Time
	lastRead atomic.Int64 // nanoseconds since opened
	gather   gatherer     // the reader's
}

// watch makes every connection of dial a watched one.
func watch(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watched{Conn: c, opened: time.Now(), gather: newGatherer(c)}, nil
	}
}

// watchedBelow finds the watched connection below TLS, if there is any.
func watchedBelow(c net.Conn) (*watched, error) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	w, ok := c.(*watched)
	if !ok {
		return nil, fmt.Errorf("start replication: connection of unexpected type %T", c)
	}
	return w, nil
}

func (w *watched) Read(p []byte) (int, error) {
	n, fresh, err := w.gather.read(p, w.now)
	if fresh {
		w.lastRead.Store(int64(w.now()))
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
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		e := newServerError(op, pe)
		if e.SQLState == insufficientPrivilege && e.Hint == "" {
			role := quoteIdentifiers([]string{c.User})
			e.Hint = "as a superuser: ALTER ROLE " + role + " REPLICATION (Amazon RDS: GRANT rds_replication TO " + role + ")"
		}
		return e
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

// connectFailure puts pgconn's errors, one per attempt, on one line, each once:
// with sslmode=prefer the same host is tried twice.
type connectFailure struct {
	op  string
	err error
}

func (e *connectFailure) Error() string {
	var lines []string
	for line := range strings.Lines(e.err.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return e.op + ": " + strings.Join(lines, "; ")
}

func (e *connectFailure) Unwrap() error { return e.err }
