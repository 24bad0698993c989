package relay

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// slotAt is where the slot of the walsender stands.
const slotAt = pglogrepl.LSN(0x1000)

// walsender is the server's end of one replication connection: it sends what a
// test tells it and notes what it is told.
type walsender struct {
	conn net.Conn

	mu       sync.Mutex
	statuses []pglogrepl.LSN // flush positions as they came
	copyDone bool
	changed  chan struct{} // closed and replaced at each status and CopyDone
}

// started returns a session that has just got the slot, and the other end of its
// stream.
func started(t *testing.T, r *Relay, db *catalog.DB) (*session, *walsender) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	accepted := make(chan *walsender, 1)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		w := &walsender{conn: conn, changed: make(chan struct{})}
		accepted <- w
		w.serve()
	}()
	r.cfg.WAL = wal.Config{
		URL: "postgres://relay@" + listener.Addr().String() + "/shop?sslmode=disable", Slot: "s", Publications: []string{"p"},
	}
	server := catalog.Server{Version: 180000, Database: "shop", SystemID: "1", Timeline: 1}
	s, err := r.start(t.Context(), db, server, catalog.Slot{Confirmed: slotAt})
	if err != nil {
		t.Fatal(err)
	}
	w := <-accepted
	t.Cleanup(func() {
		_ = s.stream.Close()
		_ = w.conn.Close()
		<-gone
	})
	return s, w
}

func (w *walsender) serve() {
	b := pgproto3.NewBackend(w.conn, w.conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	w.send(&pgproto3.AuthenticationOk{}, &pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}},
		&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		m, err := b.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.Query:
			w.send(answerOf(m.String)...)
		case *pgproto3.CopyData:
			w.note(func() {
				w.statuses = append(w.statuses, pglogrepl.LSN(binary.BigEndian.Uint64(m.Data[9:])))
			})
		case *pgproto3.CopyDone:
			w.note(func() { w.copyDone = true })
			w.send(&pgproto3.CopyDone{})
		}
	}
}

func answerOf(command string) []pgproto3.BackendMessage {
	if strings.HasPrefix(command, "START_REPLICATION") {
		return []pgproto3.BackendMessage{&pgproto3.CopyBothResponse{}}
	}
	var fields pgproto3.RowDescription
	for _, name := range []string{"systemid", "timeline", "xlogpos", "dbname"} {
		fields.Fields = append(fields.Fields, pgproto3.FieldDescription{Name: []byte(name), DataTypeOID: 25, DataTypeSize: -1})
	}
	return []pgproto3.BackendMessage{
		&fields,
		&pgproto3.DataRow{Values: [][]byte{[]byte("1"), []byte("1"), []byte("0/2000"), []byte("shop")}},
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

// brokers is a Kafka whose answers a test gives.
type brokers struct {
	arrived chan string                          // the batch's bytes
	answer  chan func() (broker.Produced, error) // one for each batch
	offset  int64
}

func newBrokers() *brokers {
	return &brokers{arrived: make(chan string, 1000), answer: make(chan func() (broker.Produced, error), 1000)}
}

func (*brokers) InitProducer(context.Context) (broker.Producer, error) {
	return broker.Producer{ID: 1}, nil
}
func (*brokers) Partitions(context.Context, string) (int, error)             { return 1, nil }
func (*brokers) CreateTopic(context.Context, string, broker.TopicSpec) error { return nil }
func (*brokers) TopicSettings(context.Context, string) (broker.TopicSettings, error) {
	return broker.TopicSettings{}, nil
}
func (*brokers) Offsets(context.Context, string, int) (broker.Offsets, error) {
	return broker.Offsets{}, nil
}
func (*brokers) Fetch(_ context.Context, _ string, _ int, offset int64, _ int, _ string, _ func(int64, []byte)) (int64, error) {
	return offset, nil
}
func (*brokers) InitTransactional(context.Context, string, broker.Producer) (broker.Producer, error) {
	return broker.Producer{ID: 1}, nil
}
func (*brokers) Refresh()                   {}
func (*brokers) Ping(context.Context) error { return nil }

func (b *brokers) Produce(ctx context.Context, _ string, _ int, batch broker.Batch) (broker.Produced, error) {
	var text strings.Builder
	_, _ = batch.WriteTo(&text)
	b.arrived <- text.String()
	select {
	case answer := <-b.answer:
		return answer()
	case <-ctx.Done():
		return broker.Produced{}, ctx.Err()
	}
}

// acknowledge lets a batch that has arrived, or the next one, succeed.
func (b *brokers) acknowledge() {
	b.offset += 1000
	offset := b.offset
	b.answer <- func() (broker.Produced, error) { return broker.Produced{BaseOffset: offset}, nil }
}

// wantBatch waits for a batch and checks that it holds exactly these payloads of
// payloads, in this order.
func (b *brokers) wantBatch(t *testing.T, payloads ...string) {
	t.Helper()
	select {
	case got := <-b.arrived:
		for _, p := range payloads {
			_, rest, found := strings.Cut(got, p)
			if !found {
				t.Fatalf("the batch lacks %q, or has it too early", p)
			}
			got = rest
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no batch arrives")
	}
}

// newRelay returns a relay whose publisher runs until the test ends.
func newRelay(t *testing.T, kafka *brokers, log io.Writer) *Relay {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(log, nil))
	publisher, err := publish.New(publish.Config{}, kafka, logger, nil)
	if err != nil {
		t.Fatal(err)
	}
	mapper, err := record.New(record.Config{
		Tables: []record.Table{{Schema: "public", Name: "outbox"}}, Topic: "{aggregatetype}", Key: "{aggregateid}",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = publisher.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return New(Config{ShutdownTimeout: 3 * time.Second, Catalog: nowhere()}, mapper, publisher, kafka, logger, nil)
}

// nowhere is a catalog that cannot be reached.
func nowhere() catalog.Config {
	return catalog.Config{ConnString: "postgres://relay@127.0.0.1:1/shop?sslmode=disable"}
}

// begun returns a session that streams from a walsender, as begin leaves it.
func begun(t *testing.T, r *Relay) (*session, *walsender) {
	t.Helper()
	s, server := started(t, r, nil)
	r.publisher.Begin(publish.Session{SystemID: "1", Timeline: 1, WALEnd: 1 << 40, Alive: s.stream.Alive, Blocked: s.stream.Blocked})
	r.state.stream(s)
	return s, server
}

// running runs a session of begun until the test or stop ends it.
func running(t *testing.T, s *session) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		err := s.run(ctx)
		s.close(ctx)
		result <- err
	}()
	once := sync.OnceValue(func() error { cancel(); return <-result })
	t.Cleanup(func() { _ = once() })
	return once
}
