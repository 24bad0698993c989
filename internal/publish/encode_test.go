package publish

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// TestPartitionerEqualsJava compares with a table that the Java client wrote.
func TestPartitionerEqualsJava(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/murmur2.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		fields := strings.Split(lines.Text(), " ")
		key, err := hex.DecodeString(fields[0])
		if err != nil || len(fields) != 4 {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		hash := murmur2(key)
		got := []string{strconv.Itoa(int(int32(hash))), strconv.Itoa(partitionOf(hash, 12)), strconv.Itoa(partitionOf(hash, 7))}
		for i := range got {
			if got[i] != fields[i+1] {
				t.Errorf("key %x: %v, Java says %v", key, got, fields[1:])
				break
			}
		}
		n++
	}
	if n < 200 {
		t.Errorf("only %d keys in the table", n)
	}
}

func TestPlacement(t *testing.T) {
	t.Parallel()
	r := Record{ID: []byte("id-1")}
	if got := placement(&r); string(got) != "id-1" {
		t.Errorf("null key is placed by %q, want the message id", got)
	}
	r.Key = []byte{}
	if got := placement(&r); got == nil || len(got) != 0 {
		t.Errorf("empty key is placed by %q, want itself", got)
	}
}

func TestSequenceWraps(t *testing.T) {
	t.Parallel()
	s := sequence{next: math.MaxInt32 - 1}
	s.advance(2)
	if s.next != 0 {
		t.Errorf("2^31-2 and 2 is %d, want 0: 2^31-1 is the last number", s.next)
	}
	s = sequence{next: math.MaxInt32, producer: broker.Producer{Epoch: math.MaxInt16}, last: 5}
	s.advance(3)
	if s.next != 2 {
		t.Errorf("next = %d, want 2", s.next)
	}
	if new(Publisher).raise(&s) {
		t.Error("raised the highest epoch")
	}
}

// TestRules compares the table of error codes with the rules in words.
func TestRules(t *testing.T) {
	t.Parallel()
	has := func(code int, codes ...int) bool { return slices.Contains(codes, code) }
	for code := -1; code < 140; code++ {
		want := rule{action: halt}
		switch {
		case code == 0:
			want = rule{action: settle, decided: true}
		case has(code, 10, 18, 32, 87):
			want.action = split
		case has(code, 17):
			want.action = refuse
		case has(code, 45, 46, 59):
			want.action = find
		case has(code, 47, 90):
			want.action = depose
		case has(code, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 51, 56, 74, 75, 78, 89):
			want.action = retry
		}
		// Codes that mean "not appended". A number is free again only after these.
		want.decided = want.decided || has(code, 3, 6, 10, 17, 18, 19, 29, 32, 87)
		got := ruleFor(code)
		if got.action != want.action || got.decided != want.decided {
			t.Errorf("code %d: %+v, want %+v", code, got, want)
		}
		if got.free != has(code, 3) {
			t.Errorf("code %d: counts as an attempt = %v", code, !got.free)
		}
		if got.refresh && got.action != retry {
			t.Errorf("code %d: reads the layout anew without trying again", code)
		}
		if name := codeName(code); name == "" || strings.ToLower(name) != name || strings.Contains(name, " ") {
			t.Errorf("code %d has the label %q", code, name)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for _, v := range []int64{0, 1, -1, 63, 64, -64, -65, 8191, 8192, math.MaxInt32, math.MaxInt64, math.MinInt64} {
		if got, want := varintSize(v), len(binary.AppendVarint(nil, v)); got != want {
			t.Errorf("varintSize(%d) = %d, want %d", v, got, want)
		}
	}
	if got := int(unsafe.Sizeof(row{})); got > rowBytes {
		t.Errorf("a row takes %d bytes, counted as %d", got, rowBytes)
	}
	if got := int(unsafe.Sizeof(piece{})); got != pieceBytes {
		t.Errorf("a piece takes %d bytes, counted as %d", got, pieceBytes)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("zero Config: %v", err)
	}
	err := Config{Compression: "brotli", MaxMessageBytes: 5, InFlightBytes: 5, RetryMax: -1, MaxAttempts: 1, UnknownTopicGrace: -1}.Validate()
	for _, want := range []string{
		"kafka.compression", "kafka.max_message_bytes", "limits.in_flight_bytes", "retry",
		"need on_poison", "unknown_topic_grace must not",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want a word about %s", err, want)
		}
	}
}

func TestTopicNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"a": true, "A-z_0.9": true, strings.Repeat("x", 249): true, "__mine": true,
		"": false, ".": false, "..": false, strings.Repeat("x", 250): false, "a b": false, "é": false,
		"__consumer_offsets": false, "__transaction_state": false, "__share_group_state": false,
	} {
		if err := checkTopic(name); (err == nil) != ok {
			t.Errorf("checkTopic(%.20q) = %v", name, err)
		}
	}
}

// encode builds the queue's form of a record.
func encode(r *Record) row {
	stamp := position.Stamp{Partitions: 3, Position: r.Position, IDHash: position.HashID(r.ID)}
	stampLen := len(stamp.AppendText(nil))
	size := bodySize(r, stampLen)
	return row{body: appendBody(make([]byte, 0, size), r, stamp, stampLen), pos: r.Position, time: r.Time.UnixMilli()}
}

// decode reads a batch with kafka-go, which checks the checksum.
func decode(t *testing.T, b *batch) []protocol.Record {
	t.Helper()
	var out bytes.Buffer
	out.Write(binary.BigEndian.AppendUint32(nil, uint32(b.Size())))
	if _, err := b.WriteTo(&out); err != nil || out.Len() != b.Size()+4 {
		t.Fatalf("wrote %d bytes, want %d: %v", out.Len()-4, b.Size(), err)
	}
	var set protocol.RecordSet
	if _, err := set.ReadFrom(&out); err != nil {
		t.Fatalf("read batch: %v", err)
	}
	var records []protocol.Record
	for {
		r, err := set.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return records
		}
		if err != nil {
			t.Fatalf("read record: %v", err)
		}
		records = append(records, *r)
	}
}

func equalBytes(t *testing.T, what string, got protocol.Bytes, want []byte) {
	t.Helper()
	if (got == nil) != (want == nil) {
		t.Fatalf("%s: null = %v, want %v", what, got == nil, want == nil)
	}
	if got == nil {
		return
	}
	if data, err := protocol.ReadAll(got); err != nil || !bytes.Equal(data, want) {
		t.Fatalf("%s: %q (%v), want %q", what, data, err, want)
	}
}

// TestLayout checks the fields of the batch header that readers do not look at.
func TestLayout(t *testing.T) {
	t.Parallel()
	var q queue
	start := time.UnixMilli(1_700_000_000_000)
	for i, d := range []time.Duration{0, 5 * time.Millisecond, -time.Second} {
		q.push(encode(&Record{Value: []byte{byte(i)}, Time: start.Add(d)}))
	}
	b := batch{producer: 1 << 40, epoch: 3, sequence: math.MaxInt32}
	b.collect(&q, 1<<20, 0)
	if err := b.seal(compress.None); err != nil {
		t.Fatal(err)
	}
	h := b.header[:]
	for what, v := range map[string][2]int64{
		"base offset":  {int64(binary.BigEndian.Uint64(h)), 0},
		"length":       {int64(binary.BigEndian.Uint32(h[atLength:])), int64(b.Size() - 12)},
		"leader epoch": {int64(int32(binary.BigEndian.Uint32(h[atLeader:]))), -1},
		"magic":        {int64(h[atMagic]), 2},
		"attributes":   {int64(binary.BigEndian.Uint16(h[atAttributes:])), 0},
		"last delta":   {int64(binary.BigEndian.Uint32(h[atLastDelta:])), 2},
		"base time":    {int64(binary.BigEndian.Uint64(h[atBaseTime:])), 1_700_000_000_000},
		"max time":     {int64(binary.BigEndian.Uint64(h[atMaxTime:])), 1_700_000_000_005},
		"producer":     {int64(binary.BigEndian.Uint64(h[atProducer:])), 1 << 40},
		"epoch":        {int64(binary.BigEndian.Uint16(h[atEpoch:])), 3},
		"sequence":     {int64(binary.BigEndian.Uint32(h[atSequence:])), math.MaxInt32},
		"count":        {int64(binary.BigEndian.Uint32(h[atCount:])), 3},
	} {
		if v[0] != v[1] {
			t.Errorf("%s = %d, want %d", what, v[0], v[1])
		}
	}
	for i, r := range decode(t, &b) {
		if want := []int64{0, 5, -1000}[i]; r.Time.UnixMilli()-start.UnixMilli() != want || r.Offset != int64(i) {
			t.Errorf("record %d: time %v, offset %d", i, r.Time, r.Offset)
		}
	}
}

// FuzzBatch: whatever a record holds, kafka-go reads it back, with every codec.
func FuzzBatch(f *testing.F) {
	f.Add([]byte("key"), []byte(`{"a":1}`), "type", []byte("OrderPlaced"), int64(1_700_000_000_000), int64(-5), uint8(0))
	f.Add([]byte(nil), []byte(nil), "", []byte(nil), int64(0), int64(math.MaxInt32), uint8(7))
	f.Add([]byte{}, []byte{}, "ключ", []byte{0, 255}, int64(-1), int64(1), uint8(12))
	f.Add(bytes.Repeat([]byte{1}, 64), bytes.Repeat([]byte("x"), 3000), strings.Repeat("h", 200), bytes.Repeat([]byte{2}, 300), int64(5), int64(0), uint8(254))
	f.Fuzz(func(t *testing.T, key, value []byte, name string, header []byte, start, step int64, flags uint8) {
		const limit = 1 << 40 // Milliseconds: far beyond any calendar that matters.
		start, step = start%limit, step%limit
		null := func(bit uint8, b []byte) []byte {
			if flags&(1<<bit) != 0 {
				return nil
			}
			return append([]byte{}, b...)
		}
		var q queue
		var want []Record
		for i := range 1 + int(flags>>6) {
			r := Record{
				Key: null(0, key), Value: null(1, value), ID: []byte("id"),
				Headers:  []Header{{Name: name, Value: null(2, header)}, {Name: "type", Value: header}},
				Time:     time.UnixMilli(start + int64(i)*step),
				Position: position.Position{Commit: 1, LSN: 2, Kind: position.Row, Index: uint32(i)},
			}
			r.Headers = r.Headers[:i%3]
			q.push(encode(&r))
			want = append(want, r)
		}
		b := batch{producer: 1, sequence: 2}
		b.collect(&q, 1<<30, 0)
		if err := b.seal(compress.Compression(flags % 5)); err != nil {
			t.Fatal(err)
		}
		got := decode(t, &b)
		if len(got) != len(want) {
			t.Fatalf("%d records, want %d", len(got), len(want))
		}
		for i := range got {
			compare(t, &got[i], &want[i])
		}
	})
}

func compare(t *testing.T, got *protocol.Record, want *Record) {
	t.Helper()
	equalBytes(t, "key", got.Key, want.Key)
	equalBytes(t, "value", got.Value, want.Value)
	if got.Time.UnixMilli() != want.Time.UnixMilli() {
		t.Fatalf("time %v, want %v", got.Time, want.Time)
	}
	if len(got.Headers) != len(want.Headers)+1 {
		t.Fatalf("%d headers, want %d and the position", len(got.Headers), len(want.Headers))
	}
	for i, h := range want.Headers {
		if got.Headers[i].Key != h.Name || !bytes.Equal(got.Headers[i].Value, h.Value) {
			t.Fatalf("header %d: %+v, want %+v", i, got.Headers[i], h)
		}
	}
	last := got.Headers[len(got.Headers)-1]
	stamp, err := position.Parse(last.Value)
	if last.Key != position.Header || err != nil || stamp.Position != want.Position {
		t.Fatalf("position header %q = %q: %v", last.Key, last.Value, err)
	}
}
