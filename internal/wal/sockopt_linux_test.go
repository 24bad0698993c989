package wal

import (
	"io"
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

// The receive buffer is set before the first byte and stays: made smaller than the
// window that the sender was told of, it would overflow once nobody reads.
func TestReceiveBufferStaysAsItBegan(t *testing.T) {
	t.Parallel()
	client, server := socketPair(t)
	go func() {
		defer server.Close()
		for message := range 200 {
			if _, err := server.Write(make([]byte, 64<<10+message)); err != nil {
				return
			}
		}
	}()
	g := newGatherer(client)
	if way, err := roundTrip(g.socket); err == nil && way <= shortWay {
		if got := receiveBuffer(t, client); got != 2*shortBuffer { // The kernel doubles it.
			t.Errorf("receive buffer: %d bytes before the stream, want %d", got, 2*shortBuffer)
		}
	}
	if err := setReceiveBuffer(g.socket, 2*shortBuffer); err != nil { // as if it had grown
		t.Fatal(err)
	}
	grown := receiveBuffer(t, client)
	g.fast, g.spacing = true, time.Millisecond
	if _, err := io.Copy(io.Discard, gatherReader{&g, clock()}); err != nil {
		t.Fatal(err)
	}
	if g.buf == nil {
		t.Fatal("the reader has not gathered")
	}
	if got := receiveBuffer(t, client); got != grown {
		t.Errorf("receive buffer: %d bytes before the stream, %d behind it", grown, got)
	}
}

func receiveBuffer(t *testing.T, c syscall.Conn) int {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	var failed error
	if err := raw.Control(func(fd uintptr) { got, failed = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return got
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
