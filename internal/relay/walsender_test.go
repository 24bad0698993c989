package relay

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// slotAt is where the slot of the walsender stands.
const slotAt = pglogrepl.LSN(0x1000)

// fakeServer is a database whose walsenders do what a test tells them.
type fakeServer struct {
	*fakeCatalog

	url     string
	senders chan *walsender // that stream
}

// newFakeServer returns a server that r connects to.
func newFakeServer(t *testing.T, r *Relay) *fakeServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeServer{
		fakeCatalog: newFakeCatalog(), senders: make(chan *walsender, 100),
		url: "postgres://relay@" + listener.Addr().String() + "/shop?sslmode=disable",
	}
	r.cfg.Catalog = catalog.Config{ConnString: f.url}
	r.cfg.WAL = wal.Config{URL: f.url, Slot: "s", Publications: []string{"p"}}
	var open sync.WaitGroup
	open.Go(func() {
		var conns []net.Conn
		for pid := uint32(1); ; pid++ {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
			open.Go(func() { f.serve(conn, pid) })
		}
		for _, conn := range conns {
			_ = conn.Close() // a client whose query was broken off would wait for that
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		open.Wait()
	})
	return f
}

func (f *fakeServer) serve(conn net.Conn, pid uint32) {
	defer func() { _ = conn.Close() }()
	b := pgproto3.NewBackend(conn, conn)
	m, err := b.ReceiveStartupMessage()
	if err != nil {
		return
	}
	startup, ok := m.(*pgproto3.StartupMessage)
	if !ok {
		return // A request to cancel; nothing here takes long.
	}
	if startup.Parameters["replication"] == "" {
		f.fakeCatalog.serve(b)
		return
	}
	w := &walsender{server: f, conn: conn, pid: pid, changed: make(chan struct{})}
	w.serve(b)
	f.set(func(c *fakeCatalog) {
		if c.sender == pid {
			c.sender = 0
		}
	})
	w.note(func() { w.gone = true })
}

// streams waits for a walsender that streams.
func (f *fakeServer) streams(t *testing.T) *walsender {
	t.Helper()
	select {
	case w := <-f.senders:
		return w
	case <-time.After(10 * time.Second):
		t.Fatal("nobody streams")
		return nil
	}
}

// connect returns an ordinary connection, closed when the test ends.
func (f *fakeServer) connect(t *testing.T) *catalog.DB {
	t.Helper()
	db, err := catalog.Open(t.Context(), catalog.Config{ConnString: f.url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

// walsender is the server's end of one replication connection: it sends what a
// test tells it and notes what it is told.
type walsender struct {
	server *fakeServer
	conn   net.Conn
	pid    uint32

	mu       sync.Mutex
	statuses []pglogrepl.LSN // flush positions as they came
	copyDone bool
	gone     bool
	changed  chan struct{} // closed and replaced at each of these
}

func (w *walsender) serve(b *pgproto3.Backend) {
	w.send(&pgproto3.AuthenticationOk{}, &pgproto3.BackendKeyData{ProcessID: w.pid, SecretKey: []byte{1, 2, 3, 4}},
		&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		m, err := b.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.Query:
			if strings.HasPrefix(m.String, "START_REPLICATION") {
				w.server.set(func(c *fakeCatalog) { c.sender = w.pid })
				w.send(&pgproto3.CopyBothResponse{})
				w.server.senders <- w
				continue
			}
			w.send(w.identity()...)
		case *pgproto3.CopyData:
			w.note(func() {
				w.statuses = append(w.statuses, pglogrepl.LSN(binary.BigEndian.Uint64(m.Data[9:])))
			})
		case *pgproto3.CopyDone:
			w.note(func() { w.copyDone = true })
			w.send(&pgproto3.CopyDone{})
		case *pgproto3.Terminate:
			return
		}
	}
}

// identity is the answer to IDENTIFY_SYSTEM.
func (w *walsender) identity() []pgproto3.BackendMessage {
	var timeline uint32
	var systemID string
	w.server.set(func(c *fakeCatalog) { timeline, systemID = c.timeline, c.systemID })
	var fields pgproto3.RowDescription
	for _, name := range []string{"systemid", "timeline", "xlogpos", "dbname"} {
		fields.Fields = append(fields.Fields, pgproto3.FieldDescription{Name: []byte(name), DataTypeOID: 25, DataTypeSize: -1})
	}
	return []pgproto3.BackendMessage{
		&fields,
		&pgproto3.DataRow{Values: [][]byte{[]byte(systemID), fmt.Append(nil, timeline), []byte("0/2000"), []byte("shop")}},
		&pgproto3.CommandComplete{CommandTag: []byte("IDENTIFY_SYSTEM")},
		&pgproto3.ReadyForQuery{TxStatus: 'I'},
	}
}

func (w *walsender) note(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *walsender) send(list ...pgproto3.BackendMessage) {
	for _, m := range list {
		data, _ := m.Encode(nil)
		_, _ = w.conn.Write(data)
	}
}

// flushed is the position reported last.
func (w *walsender) flushed() (lsn pglogrepl.LSN, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.statuses); n > 0 {
		lsn = w.statuses[n-1]
	}
	return lsn, w.changed
}

// waitFlushed waits until lsn is reported.
func (w *walsender) waitFlushed(t *testing.T, lsn pglogrepl.LSN) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		at, changed := w.flushed()
		if at == lsn {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("the server was told %s, want %s", at, lsn)
		}
	}
}

// told is closed at the next status, and at the end.
func (w *walsender) told() <-chan struct{} {
	_, changed := w.flushed()
	return changed
}

// count returns how often a position was reported, and whether the connection has
// ended.
func (w *walsender) count() (statuses int, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.statuses), w.gone
}

// wire is a message of the stream in the making (PostgreSQL documentation,
// "Logical Replication Message Formats").
type wire []byte

func (w wire) u8(v byte) wire              { return append(w, v) }
func (w wire) u16(v uint16) wire           { return binary.BigEndian.AppendUint16(w, v) }
func (w wire) u32(v uint32) wire           { return binary.BigEndian.AppendUint32(w, v) }
func (w wire) u64(v uint64) wire           { return binary.BigEndian.AppendUint64(w, v) }
func (w wire) lsn(v pglogrepl.LSN) wire    { return w.u64(uint64(v)) }
func (w wire) str(v string) wire           { return append(append(w, v...), 0) }
func (w wire) now() wire                   { return w.u64(uint64(time.Now().UnixMicro() - 946684800*1_000_000)) }
func (w *walsender) copy(b wire)           { w.send(&pgproto3.CopyData{Data: b}) }
func xlog(lsn pglogrepl.LSN) wire          { return wire{'w'}.lsn(lsn).lsn(lsn).now() }
func (w *walsender) begin(c pglogrepl.LSN) { w.copy(xlog(c).u8('B').lsn(c).now().u32(7)) }

func (w *walsender) keepalive(end pglogrepl.LSN) { w.copy(wire{'k'}.lsn(end).now().u8(0)) }

func (w *walsender) commit(c, end pglogrepl.LSN) {
	w.copy(xlog(c).u8('C').u8(0).lsn(c).lsn(end).now())
}

var outboxColumns = []string{"id", "aggregatetype", "aggregateid", "type", "payload"}

func (w *walsender) relation(name string, columns ...string) {
	b := xlog(0).u8('R').u32(42).str("public").str(name).u8('d').u16(uint16(len(columns)))
	for _, c := range columns {
		b = b.u8(0).str(c).u32(25).u32(0xffffffff)
	}
	w.copy(b)
}

func (w *walsender) insert(lsn pglogrepl.LSN, values ...string) {
	b := xlog(lsn).u8('I').u32(42).u8('N').u16(uint16(len(values)))
	for _, v := range values {
		b = append(b.u8('t').u32(uint32(len(v))), v...)
	}
	w.copy(b)
}

// order inserts an event of topic t.
func (w *walsender) order(lsn pglogrepl.LSN, payload string) {
	w.insert(lsn, "id-"+payload, "t", "k", "T", payload)
}
