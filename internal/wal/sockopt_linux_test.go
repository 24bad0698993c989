package wal

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// The kernel ends a connection whose bytes stay unacknowledged for two thirds of
// wal_sender_timeout.
func TestUserTimeoutIsSet(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialer(9*time.Second)(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	var failed error
	if err := raw.Control(func(fd uintptr) { got, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	if got != 6000 {
		t.Errorf("TCP_USER_TIMEOUT: got %d ms, want 6000", got)
	}
}

func TestUnixSocketIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialer(9*time.Second)(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
