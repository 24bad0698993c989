package broker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

// encode makes a batch of records that starts at base.
func encode(t *testing.T, base int64, attributes protocol.Attributes, records ...protocol.Record) []byte {
	t.Helper()
	var buf bytes.Buffer
	set := protocol.RecordSet{Version: 2, Attributes: attributes, Records: protocol.NewRecordReader(records...)}
	if _, err := set.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	b := buf.Bytes()[4:]
	binary.BigEndian.PutUint64(b, uint64(base))
	return b
}

// seal computes the checksum of a batch that was changed.
func seal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[atChecksum:], crc32.Checksum(b[atAttributes:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func rec(value string, headers ...string) protocol.Record {
	r := protocol.Record{Key: protocol.NewBytes([]byte("key")), Value: protocol.NewBytes([]byte(value)), Time: time.Unix(1, 0)}
	for i := 0; i < len(headers); i += 2 {
		r.Headers = append(r.Headers, protocol.Header{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

// scanned is what scanBatches hands out, as "offset:value" or "offset" without one.
func scanned(data []byte, offset int64) (out string, next int64, err error) {
	var all []string
	next, err = scanBatches(data, offset, "pos", func(at int64, v []byte) {
		if v == nil {
			all = append(all, fmt.Sprint(at))
			return
		}
		all = append(all, fmt.Sprintf("%d:%s", at, v))
	})
	return strings.Join(all, " "), next, err
}

func TestScanBatches(t *testing.T) {
	t.Parallel()
	// As compaction leaves them: no records, or the last ones gone, but the same end.
	emptied := encode(t, 10, 0, rec("a"))[:batchHeader]
	binary.BigEndian.PutUint32(emptied[8:], batchHeader-batchOverhead)
	binary.BigEndian.PutUint32(emptied[atLastDelta:], 4)
	binary.BigEndian.PutUint32(emptied[atRecordCount:], 0)
	shortened := encode(t, 10, 0, rec("a", "pos", "1"))
	binary.BigEndian.PutUint32(shortened[atLastDelta:], 4)
	// A marker, whose record must not be taken for one.
	control := encode(t, 10, protocol.Control|protocol.Transactional, rec("", "pos", "marker"))
	old := make([]byte, 40)
	old[7], old[11], old[atMagic] = 10, 28, 1

	tests := map[string]struct {
		data   []byte
		offset int64
		want   string
		next   int64
	}{
		"nothing":                    {nil, 10, "", 10},
		"none, one, other, empty":    {encode(t, 10, 0, rec("a"), rec("b", "pos", "1"), rec("c", "sop", "2"), rec("d", "pos", "")), 10, "10 11:1 12 13:", 14},
		"the last of two headers":    {encode(t, 10, 0, rec("a", "pos", "1", "x", "y", "pos", "2")), 10, "10:2", 11},
		"a null header is none":      {encode(t, 10, 0, protocol.Record{Headers: []protocol.Header{{Key: "pos", Value: []byte("1")}, {Key: "pos"}}}), 10, "10", 11},
		"null key and value":         {encode(t, 10, 0, protocol.Record{Headers: []protocol.Header{{Key: "pos", Value: []byte("1")}}}), 10, "10:1", 11},
		"from within a batch":        {encode(t, 10, 0, rec("a", "pos", "1"), rec("b", "pos", "2")), 11, "11:2", 12},
		"batch before":               {slices.Concat(encode(t, 5, 0, rec("a", "pos", "1")), encode(t, 10, 0, rec("b", "pos", "2"))), 10, "10:2", 11},
		"control batch":              {control, 10, "", 11},
		"control batch between":      {slices.Concat(encode(t, 9, 0, rec("a")), seal(control), encode(t, 11, 0, rec("b"))), 9, "9 11", 12},
		"emptied":                    {seal(emptied), 12, "", 15},
		"last records compacted":     {seal(shortened), 11, "", 15},
		"gap between batches":        {slices.Concat(encode(t, 2, 0, rec("a")), encode(t, 10, 0, rec("b"))), 1, "2 10", 11},
		"format 1":                   {slices.Concat(old, encode(t, 11, 0, rec("b"))), 10, "11", 12},
		"transactional":              {encode(t, 10, protocol.Transactional, rec("a", "pos", "1")), 10, "10:1", 11},
		"second batch without bytes": {slices.Concat(encode(t, 10, 0, rec("a")), make([]byte, 3)), 10, "10", 11},
	}
	for _, codec := range []protocol.Attributes{protocol.Gzip, protocol.Snappy, protocol.Lz4, protocol.Zstd} {
		tests["compressed with "+codec.String()] = struct {
			data   []byte
			offset int64
			want   string
			next   int64
		}{encode(t, 10, codec, rec("a", "pos", "1"), rec("b", "pos", "2")), 11, "11:2", 12}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, next, err := scanned(tt.data, tt.offset)
			if err != nil || got != tt.want || next != tt.next {
				t.Errorf("scan = %q, next %d, %v; want %q, next %d", got, next, err, tt.want, tt.next)
			}
		})
	}
}

// TestScanCut: an answer that is cut at any byte gives the whole batches.
func TestScanCut(t *testing.T) {
	t.Parallel()
	one := encode(t, 10, 0, rec("a", "pos", "1"))
	two := encode(t, 11, protocol.Gzip, rec("b", "pos", "2"), rec("c"))
	data := slices.Concat(one, two)
	for n := range data {
		want, wantNext := "", int64(10)
		if n >= len(one) {
			want, wantNext = "10:1", 11
		}
		if got, next, err := scanned(data[:n], 10); err != nil || got != want || next != wantNext {
			t.Fatalf("cut at %d: %q, next %d, %v; want %q", n, got, next, err, want)
		}
	}
}

// TestScanDamaged: damage is an error that names the batch.
func TestScanDamaged(t *testing.T) {
	t.Parallel()
	flipped := encode(t, 10, 0, rec("a"))
	flipped[len(flipped)-1] ^= 1
	many := encode(t, 10, 0, rec("a"))
	binary.BigEndian.PutUint32(many[atRecordCount:], 5)
	unknown := encode(t, 10, 0, rec("a"))
	unknown[atAttributes+1] = 7
	future := encode(t, 10, 0, rec("a"))
	future[atMagic] = 3
	tiny := encode(t, 10, 0, rec("a"))
	binary.BigEndian.PutUint32(tiny[8:], 20)
	for name, data := range map[string][]byte{
		"checksum": flipped, "record count": seal(many), "codec": seal(unknown), "format": future, "length": tiny,
	} {
		if _, next, err := scanned(data, 10); err == nil || next != 10 || !strings.Contains(err.Error(), "offset 10") {
			t.Errorf("%s: next %d, %v", name, next, err)
		}
	}
}

// TestScanBomb: a value that is large once it is unpacked is cut, and what follows it
// is read.
func TestScanBomb(t *testing.T) {
	t.Parallel()
	const limit = 4 << 10
	large := strings.Repeat("0", 32<<20)
	data := encode(t, 10, protocol.Zstd, rec("a", "pos", large), rec("b", "pos", large, "pos", "2"), rec("c", "pos", large[:limit]))
	want := fmt.Sprintf("10:%s 11:2 12:%s", large[:limit], large[:limit])
	if got, next, err := scanned(data, 10); err != nil || got != want || next != 13 {
		t.Errorf("%d bytes, next %d, %v; want %d bytes, next 13", len(got), next, err, len(want))
	}
}

// TestFetched covers the answer around the batches.
func TestFetched(t *testing.T) {
	t.Parallel()
	answer := func(top, code int16, watermark int64, aborted int32, batches []byte) []byte {
		b := binary.BigEndian.AppendUint32(nil, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(top))
		b = binary.BigEndian.AppendUint32(b, 0)
		b = binary.BigEndian.AppendUint32(b, 1)
		b = append(b, 0, 1, 't', 0, 0, 0, 1, 0, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(code))
		b = binary.BigEndian.AppendUint64(b, uint64(watermark))
		b = append(b, make([]byte, 16)...)
		b = binary.BigEndian.AppendUint32(b, uint32(aborted))
		b = append(b, make([]byte, 16*max(0, aborted))...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(batches)))
		return append(b, batches...)
	}
	one := encode(t, 10, 0, rec("a", "pos", "1"))
	tests := map[string]struct {
		body []byte
		next int64
		code int
		text string
	}{
		"records":               {answer(0, 0, 11, -1, one), 11, 0, ""},
		"aborted transactions":  {answer(0, 0, 11, 2, one), 11, 0, ""},
		"at the end":            {answer(0, 0, 10, 0, nil), 10, 0, ""},
		"code of the partition": {answer(0, 1, -1, 0, nil), 10, 1, ""},
		"code of the answer":    {answer(56, 0, 10, 0, nil), 10, 56, ""},
		"cut first batch":       {answer(0, 0, 11, 0, one[:len(one)-1]), 10, 0, "high watermark 11"},
		"another shape":         {make([]byte, 14), 10, 0, "does not name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := parseFetched(tt.body)
			if err != nil {
				t.Fatal(err)
			}
			next, err := f.scan(10, "pos", func(int64, []byte) {})
			failed := tt.code != 0 || tt.text != ""
			if next != tt.next || Code(err) != tt.code || (err != nil) != failed || failed && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("scan = %d, %v", next, err)
			}
		})
	}
	whole := answer(0, 0, 11, 1, one)
	for n := range whole {
		if _, err := parseFetched(whole[:n]); err == nil {
			t.Errorf("cut at %d: no error", n)
		}
	}
}
