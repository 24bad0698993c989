package wal

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/jackc/pglogrepl"
)

// postgresEpoch is 2000-01-01 UTC in microseconds of the Unix epoch, where the
// server's timestamps start.
const postgresEpoch = 946684800 * 1_000_000

func serverTime(us uint64) time.Time {
	return time.UnixMicro(int64(us) + postgresEpoch).UTC()
}

// cursor takes fields off the front of a message. The first field that is not
// there sets short, after which every field is zero; the caller asks once at
// the end. It never copies.
type cursor struct {
	b     []byte
	short bool
}

func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.short, c.b = true, nil
		return nil
	}
	v := c.b[:n:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) uint8() byte {
	if v := c.bytes(1); v != nil {
		return v[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if v := c.bytes(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if v := c.bytes(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (c *cursor) uint64() uint64 {
	if v := c.bytes(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (c *cursor) lsn() pglogrepl.LSN { return pglogrepl.LSN(c.uint64()) }

// text takes a string that ends in a zero byte.
func (c *cursor) text() []byte {
	i := bytes.IndexByte(c.b, 0)
	if i < 0 {
		c.short, c.b = true, nil
		return nil
	}
	v := c.b[:i]
	c.b = c.b[i+1:]
	return v
}

// end reports whether the message held exactly its fields.
func (c *cursor) end() bool { return !c.short && len(c.b) == 0 }

// decoder turns the payload of CopyData messages into Messages. It remembers
// the relations of one connection and whether a transaction is open. A row
// costs no allocation.
type decoder struct {
	msg       Message
	values    []Value
	relations map[uint32]*Relation
	last      *Relation // of the previous row
	prefix    string    // of the previous logical message
	open      bool
	final     pglogrepl.LSN // of the open transaction
	committed uint64        // when it was committed, in the server's time
	backlog   bool          // it was sent more than backlogAge later
}

func newDecoder() *decoder {
	return &decoder{relations: make(map[uint32]*Relation)}
}

// decode fills d.msg from one CopyData payload. askedReply says that the server
// wants a status update at once.
func (d *decoder) decode(data []byte) (askedReply bool, err error) {
	c := cursor{b: data}
	switch kind := c.uint8(); kind {
	case pglogrepl.XLogDataByteID:
		lsn := c.lsn()
		c.bytes(8) // the LSN again
		sent := c.uint64()
		if err := d.change(lsn, c); err != nil {
			return false, err
		}
		d.backlog = d.open && sent > d.committed+uint64(backlogAge.Microseconds()) || !d.open && d.backlog
		return false, nil
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		d.msg = Message{Kind: KindKeepalive, WALEnd: c.lsn()}
		d.backlog = false // most come when everything has been sent
		c.bytes(8)        // the time of sending
		asked := c.uint8() != 0
		if !c.end() {
			return false, malformed("keepalive")
		}
		return asked, nil
	default:
		return false, protocolErrorf("unknown copy message of type %q", kind)
	}
}

func malformed(what string) error {
	return protocolErrorf("malformed %s message", what)
}

// change decodes one message of pgoutput, protocol version 1 (PostgreSQL
// documentation, "Logical Replication Message Formats").
func (d *decoder) change(lsn pglogrepl.LSN, c cursor) error {
	kind := c.uint8()
	if c.short {
		return malformed("change")
	}
	if kind == 'I' {
		return d.insert(lsn, c)
	}
	d.msg = Message{LSN: lsn}
	switch kind {
	case 'B':
		return d.begin(c)
	case 'C':
		return d.commit(c)
	case 'R':
		return d.relation(c)
	case 'M':
		return d.logical(c)
	case 'U':
		return d.uncounted(KindUpdate, c)
	case 'D':
		return d.uncounted(KindDelete, c)
	case 'T':
		d.msg.Kind = KindTruncate
	case 'Y':
		d.msg.Kind = KindType
	case 'O':
		d.msg.Kind = KindOrigin
	default:
		return protocolErrorf("unknown change of type %q", kind)
	}
	return nil
}

func (d *decoder) begin(c cursor) error {
	d.msg.Kind = KindBegin
	d.msg.FinalLSN = c.lsn()
	d.committed = c.uint64()
	d.msg.CommitTime = serverTime(d.committed)
	d.msg.XID = c.uint32()
	if !c.end() {
		return malformed("begin")
	}
	if d.open {
		return protocolErrorf("a transaction begins inside another (at %s)", d.final)
	}
	d.open, d.final = true, d.msg.FinalLSN
	return nil
}

func (d *decoder) commit(c cursor) error {
	d.msg.Kind = KindCommit
	c.uint8() // flags, unused
	d.msg.CommitLSN = c.lsn()
	d.msg.EndLSN = c.lsn()
	d.msg.CommitTime = serverTime(c.uint64())
	switch {
	case !c.end():
		return malformed("commit")
	case !d.open:
		return protocolErrorf("commit at %s of no transaction", d.msg.CommitLSN)
	case d.msg.CommitLSN != d.final || d.msg.EndLSN <= d.msg.CommitLSN:
		return protocolErrorf("commit at %s, end %s, of the transaction of %s", d.msg.CommitLSN, d.msg.EndLSN, d.final)
	}
	d.open = false
	return nil
}

func (d *decoder) relation(c cursor) error {
	r := &Relation{OID: c.uint32(), Namespace: string(c.text()), Name: string(c.text())}
	if r.Namespace == "" {
		r.Namespace = "pg_catalog" // so abbreviated by the protocol
	}
	c.uint8() // replica identity
	n := int(c.uint16())
	if n > len(c.b) { // so that a wrong count cannot make us allocate
		return malformed("relation")
	}
	r.Columns = make([]Column, n)
	for i := range r.Columns {
		key := c.uint8()&1 != 0
		name := string(c.text())
		r.Columns[i] = Column{Name: name, TypeOID: c.uint32(), Key: key}
		c.uint32() // type modifier
	}
	if !c.end() {
		return malformed("relation")
	}
	d.relations[r.OID], d.last = r, nil
	d.msg.Kind, d.msg.Relation = KindRelation, r
	return nil
}

// table returns the relation that a change names.
func (d *decoder) table(oid uint32) *Relation {
	if d.last == nil || d.last.OID != oid {
		d.last = d.relations[oid]
	}
	return d.last
}

func (d *decoder) insert(lsn pglogrepl.LSN, c cursor) error {
	oid, tuple, n := c.uint32(), c.uint8(), int(c.uint16())
	if c.short || tuple != 'N' {
		return malformed("insert")
	}
	r := d.table(oid)
	switch {
	case !d.open:
		return protocolErrorf("insert at %s outside of a transaction", lsn)
	case r == nil:
		return protocolErrorf("insert at %s into a table (OID %d) that was not described", lsn, oid)
	case n != len(r.Columns):
		return protocolErrorf("insert at %s into %s.%s: %d values for %d columns", lsn, r.Namespace, r.Name, n, len(r.Columns))
	}
	var ok bool
	if d.values, ok = appendValues(d.values[:0], c.b, n); !ok {
		return malformed("insert")
	}
	d.msg = Message{Kind: KindInsert, LSN: lsn, Relation: r, Values: d.values}
	return nil
}

// appendValues appends the n values that are all of b. An unchanged TOAST value
// cannot occur in an insert and is refused. This is the loop that decides what
// a row costs, so it does without the cursor.
func appendValues(values []Value, b []byte, n int) ([]Value, bool) {
	for range n {
		if len(b) == 0 {
			return values, false
		}
		format := b[0]
		b = b[1:]
		switch format {
		case FormatNull:
			values = append(values, Value{Format: format})
		case FormatText, FormatBinary:
			if len(b) < 4 {
				return values, false
			}
			size := uint64(binary.BigEndian.Uint32(b))
			b = b[4:]
			if size > uint64(len(b)) { // a negative length is a large one here
				return values, false
			}
			values = append(values, Value{Format: format, Data: b[:size:size]})
			b = b[size:]
		default:
			return values, false
		}
	}
	return values, len(b) == 0
}

// uncounted names the table of a change that is not decoded further.
func (d *decoder) uncounted(kind Kind, c cursor) error {
	d.msg.Kind = kind
	d.msg.Relation = d.table(c.uint32())
	if c.short || d.msg.Relation == nil {
		return malformed(kind.String())
	}
	return nil
}

func (d *decoder) logical(c cursor) error {
	d.msg.Kind = KindLogical
	d.msg.Transactional = c.uint8()&1 != 0
	c.lsn() // the record's end, as is the message's own LSN
	if prefix := c.text(); string(prefix) != d.prefix {
		d.prefix = string(prefix)
	}
	d.msg.Prefix = d.prefix
	d.msg.Content = c.bytes(int(int32(c.uint32())))
	switch {
	case !c.end():
		return malformed("logical")
	case d.msg.Transactional && !d.open:
		return protocolErrorf("transactional message at %s outside of a transaction", d.msg.LSN)
	}
	return nil
}
