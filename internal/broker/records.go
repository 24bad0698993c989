package broker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// Layout of a record batch, message format 2 (KIP-98).
const (
	batchOverhead  = 12 // base offset and length, which the length does not count
	batchHeader    = 61
	atMagic        = 16
	atChecksum     = 17
	atAttributes   = 21 // the checksum covers everything from here on
	atLastDelta    = 23
	atRecordCount  = 57
	oldBatchHeader = 26 // of formats 0 and 1, up to an empty key and value
)

// maxValue bounds what is kept of a header's value: anybody may write one, and a
// gigabyte of it compresses to a batch of the usual size.
const maxValue = 4 << 10

// scanBatches calls each for the data records in data that are at or after offset,
// and returns the offset after the last whole batch. The last batch may be cut
// anywhere.
func scanBatches(data []byte, offset int64, header string, each func(int64, []byte)) (next int64, err error) {
	next = offset
	for len(data) >= oldBatchHeader {
		base := int64(binary.BigEndian.Uint64(data))
		size := batchOverhead + int64(binary.BigEndian.Uint32(data[8:]))
		if size > int64(len(data)) {
			break
		}
		batch := data[:size]
		data = data[size:]
		switch {
		case size >= oldBatchHeader && batch[atMagic] < 2:
			// Formats 0 and 1 have no headers, so there is nothing to hand out.
			next = max(next, base+1)
			continue
		case size < batchHeader || batch[atMagic] != 2:
			return offset, fmt.Errorf("the batch at offset %d has an unknown format", base)
		}
		end := base + int64(int32(binary.BigEndian.Uint32(batch[atLastDelta:]))) + 1
		if end <= offset {
			continue
		}
		if err := scanBatch(batch, base, offset, header, each); err != nil {
			return offset, fmt.Errorf("the batch at offset %d: %w", base, err)
		}
		next = max(next, end)
	}
	return next, nil
}

// scanBatch handles one batch of format 2.
func scanBatch(batch []byte, base, offset int64, header string, each func(int64, []byte)) error {
	sum := crc32.Checksum(batch[atAttributes:], crc32.MakeTable(crc32.Castagnoli))
	if sum != binary.BigEndian.Uint32(batch[atChecksum:]) {
		return errors.New("the checksum is wrong")
	}
	attributes := protocol.Attributes(binary.BigEndian.Uint16(batch[atAttributes:]))
	if attributes.Control() {
		return nil
	}
	var in io.Reader = bytes.NewReader(batch[batchHeader:])
	if c := attributes.Compression(); c != 0 {
		codec := c.Codec()
		if codec == nil {
			return fmt.Errorf("unknown compression %d", c)
		}
		d := codec.NewReader(in)
		defer d.Close()
		in = d
	}
	r := recordReader{in: bufio.NewReader(in), header: header}
	for range int32(binary.BigEndian.Uint32(batch[atRecordCount:])) {
		delta, value := r.next()
		if r.err != nil {
			return fmt.Errorf("the records: %w", r.err)
		}
		if at := base + delta; at >= offset {
			each(at, value)
		}
	}
	return nil
}

// recordReader reads records without holding keys and values in memory. Its methods
// do nothing after an error.
type recordReader struct {
	in     *bufio.Reader
	header string
	value  bytes.Buffer
	name   bytes.Buffer
	err    error
}

// next returns the offset of the next record, relative to its batch, and the value of
// the last header of the wanted name.
func (r *recordReader) next() (offsetDelta int64, value []byte) {
	r.varint() // Length.
	r.skip(1)  // Attributes.
	r.varint() // Time.
	offsetDelta = r.varint()
	r.skip(r.varint()) // Key, -1 is null.
	r.skip(r.varint()) // Value, likewise.
	for n := r.varint(); n > 0 && r.err == nil; n-- {
		length := r.varint()
		if length != int64(len(r.header)) {
			r.skip(length)
			r.skip(r.varint())
			continue
		}
		r.read(&r.name, length)
		length = r.varint()
		switch {
		case r.name.String() != r.header:
			r.skip(length)
		case length < 0:
			value = nil
		default:
			r.read(&r.value, min(length, maxValue))
			r.skip(length - maxValue)
			value = r.value.Bytes()
			if value == nil {
				value = []byte{}
			}
		}
	}
	return offsetDelta, value
}

func (r *recordReader) varint() int64 {
	if r.err != nil {
		return 0
	}
	var n int64
	n, r.err = binary.ReadVarint(r.in)
	return n
}

func (r *recordReader) skip(n int64) {
	if r.err != nil || n <= 0 {
		return
	}
	_, r.err = io.CopyN(io.Discard, r.in, n)
}

// read takes what is there, not what n promises, as the measure of memory.
func (r *recordReader) read(to *bytes.Buffer, n int64) {
	to.Reset()
	if r.err != nil || n <= 0 {
		return
	}
	_, r.err = io.CopyN(to, r.in, n)
}
