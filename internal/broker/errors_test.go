package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// TestMayHaveBeenWritten: only what is refused before the first byte is certain.
func TestMayHaveBeenWritten(t *testing.T) {
	t.Parallel()
	wrap := func(err error) error { return &Error{Op: "produce", Err: fmt.Errorf("wrapped: %w", err)} }
	tests := []struct {
		err    error
		want   bool
		reason string
	}{
		{&dialError{"a:1", syscall.ECONNREFUSED}, false, "dial"},
		{&dialError{"a:1", context.DeadlineExceeded}, false, "dial"},
		{rawproduce.NewError(protocol.NewErrNoLeader("t", 0)), false, "no_leader"},
		{rawproduce.NewError(protocol.NewErrNoTopic("t")), false, "no_topic"},
		{rawproduce.NewError(protocol.NewErrNoPartition("t", 0)), false, "no_topic"},
		{ErrUnknownTopic, false, "no_topic"},
		{io.EOF, true, "connection_closed"},
		{io.ErrUnexpectedEOF, true, "connection_closed"},
		{syscall.ECONNRESET, true, "connection_closed"},
		{context.DeadlineExceeded, true, "timeout"},
		{context.Canceled, true, "canceled"},
		{os.ErrDeadlineExceeded, true, "timeout"},
		{&net.OpError{Op: "read", Err: errors.New("odd")}, true, "other"},
		{errors.New("odd"), true, "other"},
	}
	for _, tt := range tests {
		if got := MayHaveBeenWritten(wrap(tt.err)); got != tt.want {
			t.Errorf("MayHaveBeenWritten(%v) = %v, want %v", tt.err, got, tt.want)
		}
		if got := Reason(wrap(tt.err)); got != tt.reason {
			t.Errorf("Reason(%v) = %q, want %q", tt.err, got, tt.reason)
		}
	}
	if MayHaveBeenWritten(wrap(kafka.BrokerNotAvailable)) {
		t.Error("BrokerNotAvailable is the transport's own refusal")
	}
	if got := Code(wrap(kafka.TopicAuthorizationFailed)); got != 29 {
		t.Errorf("Code = %d, want 29", got)
	}
}

// TestConnDeadline: an exchange without a deadline of its own gets one, an explicit
// one stays.
func TestConnDeadline(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	defer server.Close()
	go func() { _, _ = io.Copy(io.Discard, server) }() // Reads and never answers: frozen.
	c := &conn{Conn: client, limit: 20 * time.Millisecond}
	defer c.Close()
	buf := make([]byte, 1)
	exchange := func() (time.Duration, error) {
		start := time.Now()
		if _, err := c.Write([]byte("request")); err != nil {
			return time.Since(start), err
		}
		_, err := c.Read(buf)
		return time.Since(start), err
	}
	if _, err := exchange(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("exchange without a deadline = %v, want a time-out", err)
	}
	const explicit = 300 * time.Millisecond
	if err := c.SetDeadline(time.Now().Add(explicit)); err != nil {
		t.Fatal(err)
	}
	if d, err := exchange(); !errors.Is(err, os.ErrDeadlineExceeded) || d < explicit/2 {
		t.Errorf("exchange with a deadline ended after %s: %v", d, err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if d, err := exchange(); !errors.Is(err, os.ErrDeadlineExceeded) || d > explicit {
		t.Errorf("exchange after the deadline was cleared ended after %s: %v", d, err)
	}
}

// TestLoginPause: refused credentials are not tried again at once, and the reason is
// still what the broker said.
func TestLoginPause(t *testing.T) {
	t.Parallel()
	b, err := Open(Config{Brokers: []string{"127.0.0.1:1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = b.fail("reach kafka", fmt.Errorf("connect: %w", kafka.SASLAuthenticationFailed))
	_, err = b.dial(t.Context(), "tcp", "127.0.0.1:1")
	if err = b.fail("reach kafka", err); Code(err) != 58 || MayHaveBeenWritten(err) || !strings.Contains(err.Error(), "kafka.sasl") {
		t.Errorf("dial during the pause = %v", err)
	}
	var p loginPause
	now := time.Now()
	p.refuse(io.EOF, now)
	if p.refused(now.Add(loginInterval-1)) == nil || p.refused(now.Add(loginInterval)) != nil {
		t.Error("the pause does not last its interval")
	}
}
