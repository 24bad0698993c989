package record

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// row reads the columns of one row. The first error sticks, so that the reading
// code need not ask after every column.
type row struct {
	mapper *Mapper
	table  *table
	values []wal.Value
	err    error
}

func (r *row) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// refuse notes that the row cannot be published because of a column.
func (r *row) refuse(column int, problem, next string) {
	r.fail(&RowError{Table: r.table.name, Column: r.table.relation.Columns[column].Name, Problem: problem, Next: next})
}

// column returns the bytes of a column: nil for NULL, or when there is no such
// column. A bytea is the bytes it stands for; everything else is its text.
func (r *row) column(i int) []byte {
	if i == absent {
		return nil
	}
	v, c := r.values[i], r.table.relation.Columns[i]
	switch {
	case v.Format == wal.FormatNull:
		return nil
	case v.Format == wal.FormatText && c.TypeOID == oidBytea:
		return r.bytea(i, v.Data)
	case v.Format == wal.FormatText && v.Data == nil:
		return []byte{}
	case v.Format == wal.FormatText:
		return v.Data
	}
	r.fail(&wal.ProtocolError{Problem: fmt.Sprintf(
		"insert into table %s has column %q in form %q, which was not asked for", r.table.name, c.Name, v.Format)})
	return nil
}

func (r *row) bytea(i int, text []byte) []byte {
	m := r.mapper
	start := len(m.buf)
	buf, ok := appendBytea(m.buf, text)
	if !ok {
		r.refuse(i, "of type bytea is not in hex form", "set bytea_output = hex for the role of the relay")
		return nil
	}
	m.buf = buf
	return buf[start:len(buf):len(buf)]
}

// required returns the bytes of a column that must not be NULL.
func (r *row) required(i int) []byte {
	v := r.column(i)
	if v == nil {
		r.refuse(i, "is NULL, though no message goes without it", "make the column NOT NULL")
	}
	return v
}

// topic fills in the topic's template.
func (r *row) topic() string {
	m, start := r.mapper, len(r.mapper.buf)
	for _, s := range r.table.topic {
		v := r.column(s.column)
		if s.column != absent && v == nil {
			r.refuse(s.column, "is NULL, though routing.topic uses it",
				"make the column NOT NULL, or take it out of routing.topic")
			return ""
		}
		m.buf = append(append(m.buf, s.text...), v...)
	}
	return m.names.intern(m.buf[start:])
}

// key fills in the key's template. It is NULL when a column in it is NULL: half a
// key would bring rows together that do not belong together.
func (r *row) key() []byte {
	if len(r.table.key) == 1 && r.table.key[0].column != absent {
		return r.column(r.table.key[0].column)
	}
	m, start := r.mapper, len(r.mapper.buf)
	for _, s := range r.table.key {
		v := r.column(s.column)
		if s.column != absent && v == nil {
			return nil
		}
		m.buf = append(append(m.buf, s.text...), v...)
	}
	if len(r.table.key) == 0 {
		return nil
	}
	return m.buf[start:len(m.buf):len(m.buf)]
}

// headers appends the headers of the relay, then those of the row.
func (r *row) headers(out []publish.Header, hasPayload bool) []publish.Header {
	for i := range r.table.headers {
		s := &r.table.headers[i]
		v := r.column(s.column)
		if v == nil && hasPayload {
			v = s.fallback
		}
		if v != nil {
			out = append(out, publish.Header{Name: s.name, Value: v})
		}
	}
	if text := r.column(r.table.rowHeaders); text != nil {
		out = r.mapper.rowHeaders(out, text, r.table.reserved)
	}
	return out
}
