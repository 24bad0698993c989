package broker

import (
	"context"
	"net"
	"time"
)

const (
	// dialTimeout bounds one TCP connection attempt, so that one dead address
	// among several does not use up the time of the others.
	dialTimeout = 1500 * time.Millisecond
	// connectTimeout bounds everything before the first request: all dial
	// attempts, TLS handshake, version negotiation.
	connectTimeout = 5 * time.Second
)

// dialError is a connection that was never made: nothing was written.
type dialError struct {
	address string
	err     error
}

func (e *dialError) Error() string { return "dial " + e.address + ": " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dial is the transport's Dial function.
func (b *Broker) dial(ctx context.Context, network, address string) (net.Conn, error) {
	b.mu.Lock()
	err := b.login.refused(time.Now())
	b.mu.Unlock()
	if err != nil {
		return nil, &dialError{address: address, err: err}
	}
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, &dialError{address: address, err: err}
	}
	return &conn{Conn: c, limit: b.cfg.RequestTimeout}, nil
}

// loginInterval is how often credentials that were refused are tried again.
const loginInterval = 5 * time.Second

// loginPause keeps the transport, which reads metadata about twice a second, from
// hammering the brokers with credentials that they have just refused.
type loginPause struct {
	until time.Time
	err   error
}

// refuse notes a refused login, unless it is the pause itself that says so.
func (p *loginPause) refuse(err error, now time.Time) {
	if now.After(p.until) {
		*p = loginPause{until: now.Add(loginInterval), err: err}
	}
}

func (p *loginPause) refused(now time.Time) error {
	if now.Before(p.until) {
		return p.err
	}
	return nil
}

// conn gives every exchange a deadline. kafka-go clears the deadline before the
// SASL exchange, and a frozen broker would hold that connection, and the metadata
// loop behind it, for ever. A Kafka connection is used by one goroutine, which
// writes a request and reads its answer.
type conn struct {
	net.Conn
	limit    time.Duration // from a write without deadline to the end of its answer
	explicit bool          // the transport has set a deadline of its own
}

func (c *conn) SetDeadline(t time.Time) error {
	c.explicit = !t.IsZero()
	return c.Conn.SetDeadline(t)
}

func (c *conn) Write(b []byte) (int, error) {
	if !c.explicit {
		if err := c.Conn.SetDeadline(time.Now().Add(c.limit)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}
