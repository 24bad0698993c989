package wal

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// counted counts the reads that reach the socket.
type counted struct {
	*net.TCPConn
	reads int
}

func (c *counted) Read(p []byte) (int, error) {
	c.reads++
	return c.TCPConn.Read(p)
}

// socketPair returns both ends of a TCP connection.
func socketPair(t *testing.T) (*counted, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return &counted{TCPConn: client.(*net.TCPConn)}, server
}

func clock() func() time.Duration {
	started := time.Now()
	return func() time.Duration { return time.Since(started) }
}

type gatherReader struct {
	*gatherer
	now func() time.Duration
}

func (r gatherReader) Read(p []byte) (int, error) {
	n, _, err := r.read(p, r.now)
	return n, err
}

// A flood of small writes arrives whole and in order, in few reads.
func TestGatherReadsAFloodInFewReads(t *testing.T) {
	t.Parallel()
	client, server := socketPair(t)
	const writes = 200_000
	message := []byte("0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz")
	go func() {
		defer server.Close()
		for range writes {
			if _, err := server.Write(message); err != nil {
				return
			}
		}
	}()
	g := newGatherer(client)
	asked := 0
	g.before = func() { asked++ }
	got, err := io.ReadAll(gatherReader{&g, clock()})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.Repeat(message, writes)) {
		t.Error("what was read is not what was written")
	}
	if canGather && client.reads > writes/20 {
		t.Errorf("%d reads for %d writes", client.reads, writes)
	}
	if asked != client.reads {
		t.Errorf("the reader was told of %d of %d reads", asked, client.reads)
	}
}

// A slow stream is read as it comes, also after a flood.
func TestGatherReadsASlowStreamAtOnce(t *testing.T) {
	t.Parallel()
	client, server := socketPair(t)
	g := newGatherer(client)
	g.fast, g.backlog = true, true
	g.spacing = time.Hour
	r := gatherReader{&g, clock()}
	p := make([]byte, 10)
	for range 3 {
		if _, err := server.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Read(p); n != 1 || err != nil {
			t.Fatalf("read %d bytes, error %v", n, err)
		}
		g.backlog = false
	}
	if canGather && g.fast {
		t.Error("a slow stream counts as fast")
	}
}

// A read that waits ends with the deadline, whatever the low-water mark was.
func TestGatherReadEndsWithTheDeadline(t *testing.T) {
	t.Parallel()
	client, _ := socketPair(t)
	g := newGatherer(client)
	g.fast, g.spacing = true, time.Millisecond
	if err := client.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	if _, err := (gatherReader{&g, clock()}).Read(make([]byte, 10)); err == nil {
		t.Error("the read has not ended with an error")
	}
}
