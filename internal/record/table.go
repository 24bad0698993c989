package record

import (
	"maps"
	"slices"

	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// Type OIDs of built-in types, which are the same on every server (pg_type.dat).
const (
	oidBytea       = 17
	oidJSON        = 114
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidJSONB       = 3802
)

// absent is the index of a column that the table does not have.
const absent = -1

// table is what a relation message means under the configuration: every column
// found once, so that a row costs no look-up by name.
type table struct {
	name     Table
	relation *wal.Relation
	ignored  bool

	// Indexes of columns; only id and payload are never absent.
	id, payload, rowHeaders, createdAt int

	topic, key []segment
	headers    []source
	// reserved are the names that rows of this table cannot set, beside those that
	// no row can.
	reserved map[string]struct{}
}

// segment is a part of a template with its column, absent for literal text.
type segment struct {
	text   string
	column int
}

// source is where the value of a header comes from. The fallback stands in for a
// column that is absent or NULL, when there is a payload.
type source struct {
	name     string
	column   int
	fallback []byte
}

// compile finds the columns of a relation. A needed one that is not there is a
// *ColumnError.
func (c Config) compile(name Table, rel *wal.Relation) (*table, error) {
	find := func(column string) int {
		return slices.IndexFunc(rel.Columns, func(c wal.Column) bool { return c.Name == column })
	}
	for _, field := range c.requiredFields() {
		if column := c.column(field); find(column) == absent {
			return nil, &ColumnError{Table: name, Field: field, Column: column}
		}
	}
	t := &table{
		name:       name,
		relation:   rel,
		id:         find(c.column(fieldID)),
		payload:    find(c.column(fieldPayload)),
		rowHeaders: find(c.column(fieldHeaders)),
		createdAt:  absent,
		reserved:   map[string]struct{}{},
	}
	if c.CreatedAt {
		t.createdAt = find(c.column(fieldCreatedAt))
	}
	segments := func(template string) []segment {
		parts, _ := parseTemplate(template) // New has parsed it.
		out := make([]segment, len(parts))
		for i, p := range parts {
			out[i] = segment{text: p.text, column: absent}
			if p.field != "" {
				out[i].column = find(c.column(p.field))
			}
		}
		return out
	}
	t.topic, t.key = segments(c.Topic), segments(c.Key)
	for _, h := range ownHeaders() {
		s := source{name: h.name, column: find(c.column(h.field))}
		if h.name == headerContentType {
			s.fallback = contentType(rel.Columns[t.payload].TypeOID)
		}
		if s.column != absent || s.fallback != nil {
			t.headers = append(t.headers, s)
			t.reserved[h.name] = struct{}{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.HeaderColumns)) {
		t.reserved[name] = struct{}{}
		if column := find(c.HeaderColumns[name]); column != absent {
			t.headers = append(t.headers, source{name: name, column: column})
		}
	}
	return t, nil
}

// contentType is what the type of the payload's column says about its contents:
// nil for every type that can hold anything.
func contentType(typeOID uint32) []byte {
	if typeOID == oidJSON || typeOID == oidJSONB {
		return []byte("application/json")
	}
	return nil
}
