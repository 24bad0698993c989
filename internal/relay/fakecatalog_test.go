package relay

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// fakeCatalog is a database that has what a test says. It answers the statements
// of package catalog by the table that they read.
type fakeCatalog struct {
	mu        sync.Mutex
	holder    uint32 // process id of who streams from the slot, 0 for nobody
	confirmed pglogrepl.LSN
	walEnd    pglogrepl.LSN
	published bool
	saved     []string           // positions written to the state row
	onSlot    func(*fakeCatalog) // called before each look at the slot
}

// openFakeCatalog returns a connection to f.
func openFakeCatalog(t *testing.T, f *fakeCatalog) *catalog.DB {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		conn, err := listener.Accept()
		if err == nil {
			f.serve(conn)
		}
	}()
	db, err := catalog.Open(t.Context(), catalog.Config{
		ConnString: "postgres://relay@" + listener.Addr().String() + "/shop?sslmode=disable",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = db.Close(context.Background())
		_ = listener.Close()
		<-gone
	})
	return db
}

func (f *fakeCatalog) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	ready := &pgproto3.ReadyForQuery{TxStatus: 'I'}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 2, SecretKey: []byte{1, 2, 3, 4}})
	b.Send(ready)
	var rows rows
	for b.Flush() == nil {
		m, err := b.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.Query:
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")})
			b.Send(ready)
		case *pgproto3.Parse:
			rows = nil
			f.answer(m.Query, &rows)
			b.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Bind:
			if rows == nil {
				f.save(m.Parameters)
			}
			b.Send(&pgproto3.BindComplete{})
		case *pgproto3.Describe:
			b.Send(rows.description())
		case *pgproto3.Execute:
			for _, r := range rows {
				b.Send(&pgproto3.DataRow{Values: r.values()})
			}
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("UPDATE 1")})
		case *pgproto3.Sync:
			b.Send(ready)
		}
	}
}

// answer makes out the rows that a statement gives, none for an update.
func (f *fakeCatalog) answer(sql string, out *rows) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case strings.Contains(sql, "UPDATE"):
	case strings.Contains(sql, "pg_replication_slots"):
		if f.onSlot != nil {
			f.onSlot(f)
		}
		*out = rows{{
			"pgoutput", false, "shop", false, false, false, false, f.holder != 0, int(f.holder), "cdc-relay", "",
			null{},
			"async",
			slotAt.String(), f.confirmed.String(), "reserved", "", -1, f.walEnd.String(), 0, 0, 0, 0, 0,
		}}
	case strings.Contains(sql, "cdc_relay_slots"):
		*out = rows{{"s", "shop", "1", 1, slotAt.String(), list{"p"}, "h", "none", "0/0", null{}, false}}
	case strings.Contains(sql, "pg_publication"):
		*out = rows{}
		if f.published {
			*out = rows{{"owner", false, true, false, false, false, false, "public", "outbox", list(outboxColumns), ""}}
		}
	}
}

func (f *fakeCatalog) save(parameters [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.saved = append(f.saved, string(parameters[1]))
}

func (f *fakeCatalog) set(change func(*fakeCatalog)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// rows are the rows of an answer; nil stands for an update.
type rows []row

type row []any

type (
	list []string
	null struct{}
)

// description gives the types by the first row.
func (r rows) description() pgproto3.BackendMessage {
	if len(r) == 0 {
		return &pgproto3.NoData{}
	}
	var d pgproto3.RowDescription
	for _, v := range r[0] {
		oid := uint32(25)
		switch v.(type) {
		case bool:
			oid = 16
		case int:
			oid = 20
		case list:
			oid = 1009
		case null:
			oid = 1184
		}
		d.Fields = append(d.Fields, pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: oid, DataTypeSize: -1, TypeModifier: -1})
	}
	return &d
}

func (r row) values() [][]byte {
	var out [][]byte
	for _, v := range r {
		switch v := v.(type) {
		case string:
			out = append(out, []byte(v))
		case bool:
			out = append(out, strconv.AppendBool(nil, v)[:1])
		case int:
			out = append(out, strconv.AppendInt(nil, int64(v), 10))
		case list:
			out = append(out, []byte("{"+strings.Join(v, ",")+"}"))
		default:
			out = append(out, nil)
		}
	}
	return out
}
