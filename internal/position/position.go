package position

import (
	"cmp"
	"fmt"

	"github.com/jackc/pglogrepl"
)

// Kind tells the two sources of records apart. Its values are part of the order.
type Kind uint8

const (
	// Message is a logical message (pg_logical_emit_message). It sorts before a
	// row, because PostgreSQL reports the *end* of a message's log record, which
	// often equals the start of the record of the next row.
	Message Kind = iota
	// Row is an inserted row.
	Row
)

// letter is the kind as the header spells it; the letters sort like the kinds.
func (k Kind) letter() byte {
	if k == Message {
		return 'm'
	}
	return 'r'
}

// Position is the place of one record in the stream of a slot. The zero value
// lies before every real position.
//
// The LSN alone is not enough: it is not monotonic across transactions, and the
// rows of one COPY or multi-row insert share one. The ordinal in the transaction
// is not used at all, since a second publication, or logical messages switched
// on, shifts it from one decode to the next.
type Position struct {
	// Commit is the LSN of the transaction's commit record (Begin.FinalLSN).
	Commit pglogrepl.LSN
	// LSN is the one that the server reported for the change itself (WALStart).
	LSN pglogrepl.LSN
	// Kind says what LSN belongs to.
	Kind Kind
	// Index counts, from 0, the changes with equal Commit, LSN and Kind.
	Index uint32
}

// Compare returns -1, 0 or 1 as p lies before, at or after q. It is meaningful
// only for positions of one history and timeline.
func (p Position) Compare(q Position) int {
	return cmp.Or(
		cmp.Compare(p.Commit, q.Commit),
		cmp.Compare(p.LSN, q.LSN),
		cmp.Compare(p.Kind, q.Kind),
		cmp.Compare(p.Index, q.Index),
	)
}

// IsZero reports whether p is the zero value: no position at all.
func (p Position) IsZero() bool { return p == Position{} }

// String is for people: logs, errors and status.
func (p Position) String() string {
	return fmt.Sprintf("%s/%s/%c%d", p.Commit, p.LSN, p.Kind.letter(), p.Index)
}
