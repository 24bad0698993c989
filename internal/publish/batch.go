package publish

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

// Layout of a record batch, message format 2 (KIP-98). The checksum covers
// everything from the attributes on.
const (
	headerBytes  = 61
	atLength     = 8
	atLeader     = 12
	atMagic      = 16
	atChecksum   = 17
	atAttributes = 21
	atLastDelta  = 23
	atBaseTime   = 27
	atMaxTime    = 35
	atProducer   = 43
	atEpoch      = 51
	atSequence   = 53
	atCount      = 57
)

// batch is the first rows of a lane's queue, encoded as one record batch. Once it
// is sealed its bytes never change: every attempt sends the same.
//
// The rows' bytes are not copied: a batch is written as header, then for each row
// what depends on its place in the batch and the body in the queue's chunk; or,
// with compression, as header and compressed records.
type batch struct {
	session *session
	n       int // rows
	header  [headerBytes]byte
	// prefixes holds, end to end, what precedes the body of each row.
	prefixes []byte
	pieces   []piece
	records  int    // bytes of all records before compression
	payload  []byte // the compressed records, nil without compression
	// first and last are the rows' positions, last the one that counts as settled.
	last     position.Position
	lastHash uint64 // of the message id of the last row

	// producer, epoch and sequence number the first row.
	producer int64
	epoch    int16
	sequence int32
	sealed   bool
	charged  int // bytes of the batch itself counted in the budget
	// inFlight is set while an attempt is under way.
	inFlight bool
	// undecided means that some attempt ended without proof that the batch was not
	// appended. Its sequence numbers must not go to other rows. It is decided by an
	// acknowledgement of the very same bytes, or given up: see undecided.go.
	undecided bool
	// late means that some attempt ended without an answer, so that the transport
	// may still be reading the batch: it is not reused.
	late bool
	// foreign means that the session it belongs to is over and its positions mean
	// nothing in the present one: it settles no row of the lane.
	foreign bool
	// probe means that it is the first one after a reading; raised, that a new epoch
	// has been begun because of it.
	probe, raised bool
	// attempts counts requests; started is when the last one began.
	attempts int
	started  time.Time
}

// pieceBytes is the size of a piece in memory.
const pieceBytes = 32

type piece struct {
	prefixEnd int
	body      []byte
}

// collect makes b the first rows of q: as many as fit into maxBytes and maxRows (0
// = no limit), at least one. A row that the broker has refused among others goes alone,
// one that is settled already does not go at all.
func (b *batch) collect(q *queue, maxBytes, maxRows int) {
	b.n, b.records = 0, 0
	b.prefixes, b.pieces = b.prefixes[:0], b.pieces[:0]
	base := q.at(0).time
	newest := base
	if maxRows <= 0 {
		maxRows = math.MaxInt32
	}
	for b.n < q.len() && b.n < maxRows {
		r := q.at(b.n)
		if b.n > 0 && (r.dead || r.alone || q.at(0).alone) {
			break
		}
		delta := r.time - base
		size := 1 + varintSize(delta) + varintSize(int64(b.n)) + len(r.body)
		whole := varintSize(int64(size)) + size
		if b.n > 0 && headerBytes+b.records+whole > maxBytes {
			break
		}
		b.prefixes = binary.AppendVarint(b.prefixes, int64(size))
		b.prefixes = append(b.prefixes, 0) // Attributes: none are defined.
		b.prefixes = binary.AppendVarint(b.prefixes, delta)
		b.prefixes = binary.AppendVarint(b.prefixes, int64(b.n))
		b.pieces = append(b.pieces, piece{prefixEnd: len(b.prefixes), body: r.body})
		b.records += whole
		newest = max(newest, r.time)
		b.last, b.lastHash = r.pos, r.idHash
		b.n++
	}
	h := b.header[:]
	clear(h)
	binary.BigEndian.PutUint32(h[atLeader:], math.MaxUint32)
	h[atMagic] = 2
	binary.BigEndian.PutUint32(h[atLastDelta:], uint32(b.n-1))
	binary.BigEndian.PutUint64(h[atBaseTime:], uint64(base))
	binary.BigEndian.PutUint64(h[atMaxTime:], uint64(newest))
	binary.BigEndian.PutUint32(h[atCount:], uint32(b.n))
}

// seal compresses the records, numbers them and computes the checksum.
func (b *batch) seal(c compress.Compression) error {
	length := b.records
	if codec := c.Codec(); codec != nil {
		out := &sliceWriter{buf: b.payload[:0]}
		w := codec.NewWriter(out)
		_, err := b.writeRecords(w)
		if cerr := w.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return fmt.Errorf("compress batch with %s: %w", codec.Name(), err)
		}
		b.payload, length = out.buf, len(out.buf)
	}
	h := b.header[:]
	binary.BigEndian.PutUint32(h[atLength:], uint32(headerBytes-atLeader+length))
	binary.BigEndian.PutUint16(h[atAttributes:], uint16(c))
	binary.BigEndian.PutUint64(h[atProducer:], uint64(b.producer))
	binary.BigEndian.PutUint16(h[atEpoch:], uint16(b.epoch))
	binary.BigEndian.PutUint32(h[atSequence:], uint32(b.sequence))
	sum := checksum{table: crc32.MakeTable(crc32.Castagnoli)}
	_, _ = sum.Write(h[atAttributes:])
	_, _ = b.writeBody(&sum)
	binary.BigEndian.PutUint32(h[atChecksum:], sum.crc)
	b.sealed = true
	return nil
}

// memory is what the batch takes beside the rows' own bytes.
func (b *batch) memory() int {
	return cap(b.prefixes) + cap(b.pieces)*pieceBytes + cap(b.payload)
}

// Size implements broker.Batch.
func (b *batch) Size() int {
	if b.payload != nil {
		return headerBytes + len(b.payload)
	}
	return headerBytes + b.records
}

// WriteTo implements broker.Batch.
func (b *batch) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.header[:])
	if err != nil {
		return int64(n), err
	}
	m, err := b.writeBody(w)
	return int64(n) + m, err
}

func (b *batch) writeBody(w io.Writer) (int64, error) {
	if b.payload != nil {
		n, err := w.Write(b.payload)
		return int64(n), err
	}
	return b.writeRecords(w)
}

func (b *batch) writeRecords(w io.Writer) (n int64, err error) {
	start := 0
	for i := range b.pieces {
		p := &b.pieces[i]
		for _, part := range [2][]byte{b.prefixes[start:p.prefixEnd], p.body} {
			m, err := w.Write(part)
			if n += int64(m); err != nil {
				return n, err
			}
		}
		start = p.prefixEnd
	}
	return n, nil
}

// checksum is a CRC-32C as a writer.
type checksum struct {
	table *crc32.Table
	crc   uint32
}

func (c *checksum) Write(p []byte) (int, error) {
	c.crc = crc32.Update(c.crc, c.table, p)
	return len(p), nil
}

type sliceWriter struct{ buf []byte }

func (w *sliceWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	return len(p), nil
}
