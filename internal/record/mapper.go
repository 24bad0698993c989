// Package record turns a change of the write-ahead log into a Kafka record: which
// columns mean what, topic and key by template, headers, value and time. It has no
// I/O and no clock, and changes no byte of a payload. What users see of it is
// described in docs/records.md.
package record

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// Mapper maps rows to records. One goroutine at a time may use it; Dropped may be
// called from any.
type Mapper struct {
	config Config
	known  map[Table]bool // Configured tables; true for ignored ones.
	tables map[Table]*table
	last   *table // Of the row before, since neighbours mostly share theirs.

	names interner
	buf   []byte // Bytes of the current record that the row does not hold as they are.

	reserved, malformed atomic.Uint64
}

// New returns a Mapper, or all problems of the configuration, each a *ConfigError.
func New(config Config) (*Mapper, error) {
	if err := join(config.Check()); err != nil {
		return nil, err
	}
	m := &Mapper{config: config, known: map[Table]bool{}, tables: map[Table]*table{}, names: interner{}}
	for _, t := range config.Ignored {
		m.known[t] = true
	}
	for _, t := range config.Tables {
		m.known[t] = false
	}
	return m, nil
}

// Dropped counts what did not become a header. Neither fails its row.
type Dropped struct {
	// Reserved counts names in the headers column that only the relay may set.
	Reserved uint64
	// Malformed counts rows whose headers column holds something else than a JSON
	// object.
	Malformed uint64
}

// Dropped returns the counts since New.
func (m *Mapper) Dropped() Dropped {
	return Dropped{Reserved: m.reserved.Load(), Malformed: m.malformed.Load()}
}

// Relation takes a table as the stream describes it from now on. It returns a
// *ColumnError when a needed column is not there; rows of the table fail in the same
// way until it comes again. A table that is not configured is no error before its
// first row.
func (m *Mapper) Relation(rel *wal.Relation) error {
	name := Table{rel.Namespace, rel.Name}
	m.last = nil
	delete(m.tables, name)
	ignored, known := m.known[name]
	if !known {
		return nil
	}
	if ignored {
		m.tables[name] = &table{name: name, relation: rel, ignored: true}
		return nil
	}
	t, err := m.config.compile(name, rel)
	if err != nil {
		return err
	}
	m.tables[name] = t
	return nil
}

// table returns the meaning of the columns of a row.
func (m *Mapper) table(rel *wal.Relation) (*table, error) {
	if m.last != nil && m.last.relation == rel {
		return m.last, nil
	}
	name := Table{rel.Namespace, rel.Name}
	if t := m.tables[name]; t == nil || t.relation != rel {
		if _, known := m.known[name]; !known {
			return nil, &TableError{Table: name}
		}
		if err := m.Relation(rel); err != nil {
			return nil, err
		}
	}
	m.last = m.tables[name]
	return m.last, nil
}

// Map makes out the record of an inserted row. Everything in out is set but Seq;
// its slices are reused, and point into msg and into the Mapper: they are valid
// until either is used again. now is the time of publishing, commit the one of the
// transaction's commit.
//
// It returns ErrIgnored for a row to pass over, a *RowError for a row that cannot be
// published, a *TableError or *ColumnError when no row of the table can be, and a
// *wal.ProtocolError. After a *RowError out holds what could be read: a topic that is
// not whole is empty, and of a payload that could not be read the error tells. After
// any other error out holds nothing of use. The same row may be mapped again.
func (m *Mapper) Map(msg *wal.Message, pos position.Position, commit, now time.Time, out *publish.Record) error {
	if msg.Kind != wal.KindInsert || msg.Relation == nil || len(msg.Values) != len(msg.Relation.Columns) {
		return &wal.ProtocolError{Problem: "insert does not fit its relation"}
	}
	t, err := m.table(msg.Relation)
	if err != nil {
		return err
	}
	if t.ignored {
		return ErrIgnored
	}
	m.reset()
	r := row{mapper: m, table: t, values: msg.Values}
	*out = publish.Record{Headers: out.Headers[:0], Position: pos, CommitTime: commit}
	out.ID = r.required(t.id)
	out.Topic = r.topic()
	out.Key = r.key()
	out.Value = r.column(t.payload)
	out.Headers = r.headers(out.Headers, out.Value != nil)
	out.Time = recordTime(r.createdAt(commit), now)
	if refused, ok := errors.AsType[*RowError](r.err); ok {
		refused.Unread = out.Value == nil && msg.Values[t.payload].Format != wal.FormatNull
	}
	return r.err
}

// Columns returns the exact names of the columns of id and payload.
func (m *Mapper) Columns() (id, payload string) {
	return m.config.column(fieldID), m.config.column(fieldPayload)
}

// maxKept bounds what one extraordinary row leaves allocated.
const maxKept = 1 << 20

func (m *Mapper) reset() {
	if cap(m.buf) > maxKept {
		m.buf = nil
	}
	m.buf = m.buf[:0]
}
