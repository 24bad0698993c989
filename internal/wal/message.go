package wal

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Kind says what a Message is. The set is closed: these are the messages that
// a server may send at protocol version 1 with streaming off, plus the
// server's keepalive and its notices.
type Kind uint8

// The kinds of Message.
const (
	KindBegin     Kind = iota + 1 // a transaction starts; it has committed already
	KindCommit                    // the transaction ends
	KindInsert                    // one inserted row
	KindRelation                  // a table's columns, before its first row and after DDL
	KindLogical                   // a message of pg_logical_emit_message
	KindUpdate                    // counted only; an insert-only publication sends none
	KindDelete                    // counted only
	KindTruncate                  // counted only
	KindType                      // a data type's name; counted only
	KindOrigin                    // where a replicated-in transaction came from; counted only
	KindKeepalive                 // the server's own position
	KindNotice                    // a NoticeResponse that is neither an error nor data
)

// String returns the kind's name in lower case, as metrics and logs show it.
func (k Kind) String() string {
	switch k {
	case KindBegin:
		return "begin"
	case KindCommit:
		return "commit"
	case KindInsert:
		return "insert"
	case KindRelation:
		return "relation"
	case KindLogical:
		return "message"
	case KindUpdate:
		return "update"
	case KindDelete:
		return "delete"
	case KindTruncate:
		return "truncate"
	case KindType:
		return "type"
	case KindOrigin:
		return "origin"
	case KindKeepalive:
		return "keepalive"
	case KindNotice:
		return "notice"
	}
	return "unknown"
}

// Column is one column of a Relation, in the order of the row's values.
type Column struct {
	Name    string
	TypeOID uint32
	Key     bool // part of the replica identity
}

// Relation is a table as the server described it on this connection. It is
// never changed after it was made, so it may be kept; a later description of
// the same table is another Relation. Route by Namespace and Name, never by
// OID: one publication may hold several tables and partitions come and go. With
// publish_via_partition_root the rows name the root, but the server describes
// each partition too.
type Relation struct {
	OID       uint32
	Namespace string
	Name      string
	Columns   []Column
}

// The forms in which a Value arrives.
const (
	FormatNull      = 'n'
	FormatText      = 't'
	FormatBinary    = 'b'
	FormatUnchanged = 'u' // an unchanged TOAST value; an insert cannot hold one
)

// Value is one column of a row. Data points into the connection's receive
// buffer: it is valid until the next call of Stream.Next, and a goroutine that
// keeps it longer copies it.
type Value struct {
	Format byte
	Data   []byte // empty, not nil, for an empty value; nil for NULL
}

// Message is one message of the stream. Next returns the same Message every
// time: it, and every slice in it except Relation, is valid until the next
// call of Next. Which fields are set depends on Kind.
type Message struct {
	Kind Kind

	// LSN is the WAL position of the message: where a row's record starts, but
	// where a logical message's record ends, so that a message often has the LSN
	// of the row after it. All rows of one COPY record share one LSN. A relation
	// has 0/0, and a begin the LSN of its transaction's first change, or 0/0 if an
	// origin follows. It is not monotonic across transactions and never a position
	// to confirm.
	LSN pglogrepl.LSN

	// FinalLSN (begin) is where the commit record starts; it equals CommitLSN of
	// the commit that follows. Transactions arrive in this order.
	FinalLSN pglogrepl.LSN
	// CommitTime (begin and commit) is the server's clock at commit.
	CommitTime time.Time
	// XID (begin) is the transaction id.
	XID uint32

	// CommitLSN (commit) is where the commit record starts: confirming it has the
	// transaction sent again.
	CommitLSN pglogrepl.LSN
	// EndLSN (commit) is where the commit record ends: the one position to
	// confirm once every row up to here is settled.
	EndLSN pglogrepl.LSN

	// Relation (relation, insert, update, delete) is the table.
	Relation *Relation
	// Values (insert) are the row's columns, one for each of Relation.Columns.
	Values []Value

	// Prefix, Content and Transactional (logical) are what was passed to
	// pg_logical_emit_message. Anyone who may connect can emit one, with any
	// prefix. One that is not transactional arrives when it is decoded, so outside
	// of any transaction, ahead of the one that emitted it, and also if that one
	// rolled back.
	Prefix        string
	Content       []byte
	Transactional bool

	// WALEnd (keepalive) is the end of what the server has decoded. It may be
	// confirmed when no transaction is open and nothing is unsettled, and at no
	// other moment.
	WALEnd pglogrepl.LSN

	// Notice (notice) is what the server said.
	Notice *ServerError
}
