package relay

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
)

// fakeCatalog is a database that has what a test says. It answers the statements
// of package catalog by the table that they read.
type fakeCatalog struct {
	mu        sync.Mutex
	sender    uint32 // process id of the walsender of ours that streams from the slot, 0 for none
	thief     uint32 // of somebody else's that does instead
	confirmed pglogrepl.LSN
	walEnd    pglogrepl.LSN
	broken    bool // the publication is gone
	timeline  uint32
	systemID  string // as IDENTIFY_SYSTEM says; the role may not ask for it over an ordinary connection
	row       slotRow
	onSlot    func(*fakeCatalog) // called before each look at the slot
	renewals  []uint32           // who streamed at each renewal of the history
}

// slotRow is what the relay has recorded of the slot.
type slotRow struct {
	history   string
	confirmed string
	recorded  time.Time
	clean     bool
	saved     []string // positions as they were recorded
}

func newFakeCatalog() *fakeCatalog {
	return &fakeCatalog{
		confirmed: slotAt, walEnd: 0x2000, timeline: 1, systemID: "1",
		row: slotRow{history: "h", confirmed: "0/0", recorded: time.Unix(1, 0)},
	}
}

func (f *fakeCatalog) holder() uint32 {
	if f.thief != 0 {
		return f.thief
	}
	return f.sender
}

func (f *fakeCatalog) serve(b *pgproto3.Backend) {
	ready := &pgproto3.ReadyForQuery{TxStatus: 'I'}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 2, SecretKey: []byte{1, 2, 3, 4}})
	b.Send(ready)
	var sql string
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
			sql = m.Query
			b.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Bind:
			rows = f.answer(sql, m)
			b.Send(&pgproto3.BindComplete{})
		case *pgproto3.Describe:
			b.Send(rows.description())
		case *pgproto3.Execute:
			for _, r := range rows {
				b.Send(&pgproto3.DataRow{Values: r.values()})
			}
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		case *pgproto3.Sync:
			b.Send(ready)
		}
	}
}

// answer makes out the rows that a statement gives.
func (f *fakeCatalog) answer(sql string, p *pgproto3.Bind) rows {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case strings.Contains(sql, "UPDATE"):
		return f.update(sql, p)
	case strings.Contains(sql, "server_version_num"):
		return rows{{
			180000, "18.0", "shop", "relay", "logical", false, "", fmt.Sprintf("%08X", f.timeline), f.walEnd.String(),
			10, 1, 10, 1, "", "", -1, 60_000, 0, 2,
		}}
	case strings.Contains(sql, "pg_replication_slots"):
		if f.onSlot != nil {
			f.onSlot(f)
		}
		return rows{{
			"pgoutput", false, "shop", false, false, false, false, f.holder() != 0, int(f.holder()), "cdc-relay", "",
			null{},
			"async",
			slotAt.String(), f.confirmed.String(), "reserved", "", -1, f.walEnd.String(), 0, 0, 0, 0, 0,
		}}
	case strings.Contains(sql, "cdc_relay_slots"):
		return rows{{
			"s", "shop", "1", 1, slotAt.String(), list{"p"}, f.row.history, "none", f.row.confirmed, f.row.recorded, f.row.clean,
		}}
	case strings.Contains(sql, "pg_publication"):
		if !f.broken {
			return rows{{"owner", false, true, false, false, false, false, "public", "outbox", list(outboxColumns), ""}}
		}
	case strings.Contains(sql, "pg_partition_root"):
		text, no := list(slices.Repeat([]string{"text"}, len(outboxColumns))), list(slices.Repeat([]string{"f"}, len(outboxColumns)))
		return rows{{1, "r", "p", "public", "outbox", list{}, list{}, list(outboxColumns), text, flags(no), flags(no)}}
	}
	return nil
}

// update changes the row for the walsender that streams from the slot.
func (f *fakeCatalog) update(sql string, p *pgproto3.Bind) rows {
	by := number(p, 1)
	if by != int(f.holder()) {
		return nil
	}
	if strings.Contains(sql, "history_id =") && !strings.Contains(sql, "confirmed") {
		if string(p.Parameters[2]) != f.row.history {
			return nil
		}
		f.renewals = append(f.renewals, uint32(by))
		f.row.history += "'"
		return rows{{f.row.history}}
	}
	f.row.confirmed, f.row.clean = string(p.Parameters[2]), string(p.Parameters[4]) == "t" || string(p.Parameters[4]) == "true"
	f.row.recorded = f.row.recorded.Add(time.Second)
	f.row.saved = append(f.row.saved, f.row.confirmed)
	return rows{{f.row.recorded}}
}

// number reads a parameter in text or binary form.
func number(p *pgproto3.Bind, i int) int {
	text := p.Parameters[i]
	if len(p.ParameterFormatCodes) > i && p.ParameterFormatCodes[i] == 1 {
		return int(binary.BigEndian.Uint64(text))
	}
	n, _ := strconv.Atoi(string(text))
	return n
}

func (f *fakeCatalog) set(change func(*fakeCatalog)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// rows are the rows of an answer.
type rows []row

type row []any

type (
	list  []string
	flags []string
	null  struct{}
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
		case flags:
			oid = 1000
		case null, time.Time:
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
		case time.Time:
			out = append(out, []byte(v.UTC().Format("2006-01-02 15:04:05.999999+00")))
		case list:
			out = append(out, []byte("{"+strings.Join(v, ",")+"}"))
		case flags:
			out = append(out, []byte("{"+strings.Join(v, ",")+"}"))
		default:
			out = append(out, nil)
		}
	}
	return out
}
