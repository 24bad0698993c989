package wal

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// looping is a connection that gives the same frames again and again, one per
// read, as a walsender sends them.
type looping struct {
	net.Conn

	frames [][]byte
	next   int
	from   int // where to go on after the last
}

func (l *looping) Read(p []byte) (int, error) {
	f := l.frames[l.next]
	if l.next++; l.next == len(l.frames) {
		l.next = l.from
	}
	return copy(p, f), nil
}

func (l *looping) Write(p []byte) (int, error)      { return len(p), nil }
func (l *looping) Close() error                     { return nil }
func (l *looping) SetReadDeadline(time.Time) error  { return nil }
func (l *looping) SetWriteDeadline(time.Time) error { return nil }

// rows returns a stream that begins a transaction, describes a table, and then
// gives rows for ever.
func rows(tb testing.TB, payload int) *Stream {
	tb.Helper()
	l := &looping{from: 2}
	for _, data := range [][]byte{
		begin(0x2000, 7),
		relation(16384, "public", "outbox", make([]Column, 6)...),
		insert(0x1f00, 16384, text("7f1c5a0e-6f0f-4a55-9a52-0d9b5b1f6d11"), text("order"), text("4711"),
			text("changed"), text(strings.Repeat("x", payload)), null),
	} {
		f, err := (&pgproto3.CopyData{Data: data}).Encode(nil)
		if err != nil {
			tb.Fatal(err)
		}
		l.frames = append(l.frames, f)
	}
	dial := watch(func(context.Context, string, string) (net.Conn, error) { return l, nil })
	conn, err := dial(tb.Context(), "tcp", "")
	if err != nil {
		tb.Fatal(err)
	}
	config, err := pgconn.ParseConfig("host=127.0.0.1")
	if err != nil {
		tb.Fatal(err)
	}
	pg, err := pgconn.Construct(&pgconn.HijackedConn{Conn: conn, Frontend: pgproto3.NewFrontend(conn, conn), Config: config})
	if err != nil {
		tb.Fatal(err)
	}
	s, err := newStream(pg, DefaultWALSenderTimeout, slotPosition)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	for range 3 {
		if _, err := s.Next(); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

func TestNextAllocatesNothingPerRow(t *testing.T) {
	s := rows(t, 200)
	got := testing.AllocsPerRun(1000, func() {
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("got %v allocations, want none", got)
	}
}

// BenchmarkNext is the whole way from the socket's read, without the system
// call, to the decoded row.
func BenchmarkNext(b *testing.B) {
	for name, payload := range map[string]int{"200B": 200, "2kB": 2000} {
		b.Run(name, func(b *testing.B) {
			s := rows(b, payload)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
