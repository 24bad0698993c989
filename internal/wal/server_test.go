package wal

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slotPosition is where the scripted server's slot stands.
const slotPosition = pglogrepl.LSN(0x1000)

// status is a standby status update as the scripted server received it.
type status struct {
	at                  time.Duration // since the server started
	write, flush, apply pglogrepl.LSN
	ask                 bool
}

// scripted is one connection of a server that does what a test tells it. It
// reads and writes in two goroutines, as a walsender in effect does, and must
// live inside a synctest bubble.
type scripted struct {
	t       *testing.T
	client  net.Conn
	conn    net.Conn
	started time.Time
	out     chan []byte
	gone    chan struct{} // closed when reading ended
	startup map[string]string

	mu       sync.Mutex
	queries  []string
	statuses []status
	copyDone time.Duration // when the client's CopyDone came
	left     bool          // the client's Terminate came

	// onStatus and onCopyDone answer, onQuery returns what to send. Tests replace
	// the first two through answer, the last before the server is used.
	onStatus   func(status)
	onCopyDone func()
	onQuery    func(query string) []pgproto3.BackendMessage
}

// newScripted returns a server that answers pings and ends the copy when asked.
func newScripted(t *testing.T) *scripted {
	t.Helper()
	client, conn := net.Pipe()
	s := &scripted{
		t: t, client: client, conn: conn, started: time.Now(),
		out: make(chan []byte, 10_000), gone: make(chan struct{}),
	}
	s.onStatus = func(u status) {
		if u.ask {
			s.keepalive(u.flush, false)
		}
	}
	s.onCopyDone = func() {
		s.send(&pgproto3.CopyDone{}, &pgproto3.CommandComplete{CommandTag: []byte("COPY 0")},
			&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
	s.onQuery = func(q string) []pgproto3.BackendMessage {
		if strings.HasPrefix(q, "START_REPLICATION") {
			return []pgproto3.BackendMessage{&pgproto3.CopyBothResponse{}}
		}
		return nil
	}
	go s.serve()
	t.Cleanup(func() { _ = conn.Close(); <-s.gone })
	return s
}

func (s *scripted) serve() {
	defer close(s.gone)
	defer s.conn.Close()
	go s.deliver()
	b := pgproto3.NewBackend(s.conn, s.conn)
	m, err := b.ReceiveStartupMessage()
	if err != nil {
		return
	}
	s.startup = m.(*pgproto3.StartupMessage).Parameters
	s.send(&pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "server_version", Value: "18.3"},
		&pgproto3.BackendKeyData{ProcessID: 4711, SecretKey: []byte{1, 2, 3, 4}}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		m, err := b.Receive()
		if err != nil {
			return
		}
		s.handle(m)
	}
}

func (s *scripted) handle(m pgproto3.FrontendMessage) {
	switch m := m.(type) {
	case *pgproto3.Query:
		s.mu.Lock()
		s.queries = append(s.queries, m.String)
		s.mu.Unlock()
		s.send(s.onQuery(m.String)...)
	case *pgproto3.CopyData:
		u := status{
			at:    time.Since(s.started),
			write: pglogrepl.LSN(binary.BigEndian.Uint64(m.Data[1:])),
			flush: pglogrepl.LSN(binary.BigEndian.Uint64(m.Data[9:])),
			apply: pglogrepl.LSN(binary.BigEndian.Uint64(m.Data[17:])),
			ask:   m.Data[33] == 1,
		}
		s.mu.Lock()
		s.statuses = append(s.statuses, u)
		answer := s.onStatus
		s.mu.Unlock()
		answer(u)
	case *pgproto3.CopyDone:
		s.mu.Lock()
		s.copyDone = time.Since(s.started)
		answer := s.onCopyDone
		s.mu.Unlock()
		answer()
	case *pgproto3.Terminate:
		s.mu.Lock()
		s.left = true
		s.mu.Unlock()
	}
}

// deliver writes what send queued, in order.
func (s *scripted) deliver() {
	for {
		select {
		case <-s.gone:
			return
		case b := <-s.out:
			if b == nil {
				_ = s.conn.Close()
				return
			}
			if _, err := s.conn.Write(b); err != nil {
				return
			}
		}
	}
}

// send queues messages.
func (s *scripted) send(list ...pgproto3.BackendMessage) {
	for _, m := range list {
		b, err := m.Encode(nil)
		if err != nil {
			panic(err)
		}
		s.out <- b
	}
}

// sendThenClose queues messages and the end of the connection.
func (s *scripted) sendThenClose(list ...pgproto3.BackendMessage) {
	s.send(list...)
	s.out <- nil
}

func (s *scripted) copy(data ...[]byte) {
	for _, d := range data {
		s.send(&pgproto3.CopyData{Data: d})
	}
}

func (s *scripted) keepalive(end pglogrepl.LSN, ask bool) { s.copy(keepaliveData(end, ask)) }

// answer replaces how status updates and CopyDone are answered; nil leaves one.
func (s *scripted) answer(onStatus func(status), onCopyDone func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if onStatus != nil {
		s.onStatus = onStatus
	}
	if onCopyDone != nil {
		s.onCopyDone = onCopyDone
	}
}

func silence(status) {}

// since returns the status updates received so far, from the i-th on.
func (s *scripted) since(i int) []status {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]status(nil), s.statuses[i:]...)
}

func (s *scripted) count() int { return len(s.since(0)) }

func (s *scripted) last() status {
	all := s.since(0)
	return all[len(all)-1]
}

// config is what the tests connect with.
func (s *scripted) config() Config {
	return Config{
		URL:          "postgres://relay:hunter2@127.0.0.1:5432/shop?sslmode=disable",
		Slot:         "cdc_relay",
		Publications: []string{"cdc_relay"},
		dial:         func(context.Context, string, string) (net.Conn, error) { return s.client, nil },
	}
}

// connect opens a connection to the scripted server.
func (s *scripted) connect() *Conn {
	s.t.Helper()
	c, err := Connect(s.t.Context(), s.config())
	if err != nil {
		s.t.Fatalf("Connect: %v", err)
	}
	return c
}

// at is a slot that stands there.
func at(lsn pglogrepl.LSN) func(context.Context) (pglogrepl.LSN, error) {
	return func(context.Context) (pglogrepl.LSN, error) { return lsn, nil }
}

// start opens a stream, closed when the test ends.
func (s *scripted) start() *Stream {
	s.t.Helper()
	st, err := s.connect().Start(s.t.Context(), StartOptions{Confirmed: at(slotPosition), ServerVersion: 180003})
	if err != nil {
		s.t.Fatalf("Start: %v", err)
	}
	s.t.Cleanup(func() { _ = st.Close() })
	synctest.Wait() // the first status is out
	return st
}

// What pgoutput sends, encoded from the protocol's documentation.

type wire []byte

func (w wire) u8(v byte) wire    { return append(w, v) }
func (w wire) u16(v uint16) wire { return binary.BigEndian.AppendUint16(w, v) }
func (w wire) u32(v uint32) wire { return binary.BigEndian.AppendUint32(w, v) }
func (w wire) u64(v uint64) wire { return binary.BigEndian.AppendUint64(w, v) }
func (w wire) str(v string) wire { return append(append(w, v...), 0) }

func keepaliveData(end pglogrepl.LSN, ask bool) []byte {
	w := wire{'k'}.u64(uint64(end)).u64(0)
	if ask {
		return w.u8(1)
	}
	return w.u8(0)
}

// xlog wraps a change.
func xlog(lsn pglogrepl.LSN, change wire) []byte {
	return append(wire{'w'}.u64(uint64(lsn)).u64(uint64(lsn)).u64(0), change...)
}

const commitMicros = 800_000_000_000_000 // since 2000-01-01: 2025-05-08

func begin(final pglogrepl.LSN, xid uint32) []byte {
	return xlog(final-0x10, wire{'B'}.u64(uint64(final)).u64(commitMicros).u32(xid))
}

func commit(final, end pglogrepl.LSN) []byte {
	return xlog(final, wire{'C'}.u8(0).u64(uint64(final)).u64(uint64(end)).u64(commitMicros))
}

func relation(oid uint32, namespace, name string, columns ...Column) []byte {
	w := wire{'R'}.u32(oid).str(namespace).str(name).u8('d').u16(uint16(len(columns)))
	for _, c := range columns {
		flags := byte(0)
		if c.Key {
			flags = 1
		}
		w = w.u8(flags).str(c.Name).u32(c.TypeOID).u32(0xffffffff)
	}
	return xlog(0, w)
}

func tuple(w wire, values ...Value) wire {
	w = w.u16(uint16(len(values)))
	for _, v := range values {
		w = w.u8(v.Format)
		if v.Format == FormatText || v.Format == FormatBinary {
			w = append(w.u32(uint32(len(v.Data))), v.Data...)
		}
	}
	return w
}

func insert(lsn pglogrepl.LSN, oid uint32, values ...Value) []byte {
	return xlog(lsn, tuple(wire{'I'}.u32(oid).u8('N'), values...))
}

func logical(lsn pglogrepl.LSN, transactional bool, prefix, content string) []byte {
	flags := byte(0)
	if transactional {
		flags = 1
	}
	w := wire{'M'}.u8(flags).u64(uint64(lsn)).str(prefix).u32(uint32(len(content)))
	return xlog(lsn, append(w, content...))
}

func text(s string) Value { return Value{Format: FormatText, Data: []byte(s)} }

var null = Value{Format: FormatNull}

var outboxColumns = []Column{{Name: "id", TypeOID: 2950, Key: true}, {Name: "payload", TypeOID: 3802}}
