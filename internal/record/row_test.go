package record_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

const (
	oidText, oidUUID, oidBytea, oidJSON, oidJSONB   = 25, 2950, 17, 114, 3802
	oidTimestamp, oidTimestamptz, oidInt8, oidOther = 1114, 1184, 20, 16_400
)

var (
	commit = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	now    = commit.Add(3 * time.Millisecond)
	pos    = position.Position{Commit: 20, LSN: 10, Kind: position.Row, Index: 1}
)

func defaults() record.Config {
	return record.Config{
		Tables: []record.Table{{Schema: "public", Name: "outbox"}},
		Topic:  "outbox.event.{aggregatetype}",
		Key:    "{aggregateid}",
	}
}

// cell is one column of a test row.
type cell struct {
	name  string
	oid   uint32
	value wal.Value
}

func text(name string, oid uint32, value string) cell {
	return cell{name, oid, wal.Value{Format: wal.FormatText, Data: []byte(value)}}
}

func null(name string, oid uint32) cell {
	return cell{name, oid, wal.Value{Format: wal.FormatNull}}
}

// order is a row of the default table; more replaces or adds columns.
func order(more ...cell) []cell {
	cells := []cell{
		text("id", oidUUID, "6b1f"), text("aggregatetype", oidText, "order"), text("aggregateid", oidText, "42"),
		text("type", oidText, "OrderPlaced"), text("payload", oidJSONB, `{"n": 1}`), null("headers", oidJSONB),
	}
next:
	for _, m := range more {
		for i := range cells {
			if cells[i].name == m.name {
				cells[i] = m
				continue next
			}
		}
		cells = append(cells, m)
	}
	return cells
}

func without(cells []cell, name string) []cell {
	var out []cell
	for _, c := range cells {
		if c.name != name {
			out = append(out, c)
		}
	}
	return out
}

func relation(table record.Table, cells []cell) *wal.Relation {
	rel := &wal.Relation{OID: 16_384, Namespace: table.Schema, Name: table.Name}
	for _, c := range cells {
		rel.Columns = append(rel.Columns, wal.Column{Name: c.name, TypeOID: c.oid})
	}
	return rel
}

func insert(rel *wal.Relation, cells []cell) *wal.Message {
	m := &wal.Message{Kind: wal.KindInsert, LSN: 10, Relation: rel}
	for _, c := range cells {
		m.Values = append(m.Values, c.value)
	}
	return m
}

func newMapper(tb testing.TB, c record.Config) *record.Mapper {
	tb.Helper()
	m, err := record.New(c)
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	return m
}

// mapRow maps one row of public.outbox with a new Mapper.
func mapRow(tb testing.TB, c record.Config, cells []cell) (publish.Record, *record.Mapper, error) {
	tb.Helper()
	m := newMapper(tb, c)
	rel := relation(record.Table{Schema: "public", Name: "outbox"}, cells)
	var out publish.Record
	if err := m.Relation(rel); err != nil {
		return out, m, err
	}
	err := m.Map(insert(rel, cells), pos, commit, now, &out)
	return out, m, err
}

// mustMap is mapRow for a row that must become a record.
func mustMap(tb testing.TB, c record.Config, cells []cell) publish.Record {
	tb.Helper()
	out, _, err := mapRow(tb, c, cells)
	if err != nil {
		tb.Fatalf("Map: %v", err)
	}
	return out
}

// listed are headers as name=value, in order.
func listed(headers []publish.Header) []string {
	var out []string
	for _, h := range headers {
		out = append(out, h.Name+"="+string(h.Value))
	}
	return out
}
