package wal

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var commitTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(commitMicros * time.Microsecond)

var outbox = &Relation{OID: 16384, Namespace: "public", Name: "outbox", Columns: outboxColumns}

// inTransaction returns a decoder that knows the outbox and has a transaction
// open.
func inTransaction(t testing.TB) *decoder {
	t.Helper()
	d := newDecoder()
	for _, m := range [][]byte{begin(0x2000, 7), relation(16384, "public", "outbox", outboxColumns...)} {
		if _, err := d.decode(m); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func outside(testing.TB) *decoder { return newDecoder() }

func TestDecode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		from func(testing.TB) *decoder
		data []byte
		want Message
	}{
		{"begin", outside, begin(0x2000, 7), Message{Kind: KindBegin, LSN: 0x1ff0, FinalLSN: 0x2000, CommitTime: commitTime, XID: 7}},
		{"commit", inTransaction, commit(0x2000, 0x2030), Message{Kind: KindCommit, LSN: 0x2000, CommitLSN: 0x2000, EndLSN: 0x2030, CommitTime: commitTime}},
		{"relation", outside, relation(16384, "public", "outbox", outboxColumns...), Message{Kind: KindRelation, Relation: outbox}},
		{
			"relation of pg_catalog", outside, relation(1, "", "pg_class"),
			Message{Kind: KindRelation, Relation: &Relation{OID: 1, Namespace: "pg_catalog", Name: "pg_class", Columns: []Column{}}},
		},
		{
			"insert", inTransaction, insert(0x1f00, 16384, text("a"), text(`{"n": 1}`)),
			Message{Kind: KindInsert, LSN: 0x1f00, Relation: outbox, Values: []Value{text("a"), text(`{"n": 1}`)}},
		},
		{
			"insert of null and empty", inTransaction, insert(0x1f00, 16384, null, text("")),
			Message{Kind: KindInsert, LSN: 0x1f00, Relation: outbox, Values: []Value{{Format: FormatNull}, {Format: FormatText, Data: []byte{}}}},
		},
		{
			"insert in binary form", inTransaction, insert(0x1f00, 16384, Value{Format: FormatBinary, Data: []byte{0, 1}}, null),
			Message{Kind: KindInsert, LSN: 0x1f00, Relation: outbox, Values: []Value{{Format: FormatBinary, Data: []byte{0, 1}}, null}},
		},
		{
			"message in a transaction", inTransaction, logical(0x1f40, true, "cdc_relay", "x"),
			Message{Kind: KindLogical, LSN: 0x1f40, Prefix: "cdc_relay", Content: []byte("x"), Transactional: true},
		},
		{
			"message outside of one", outside, logical(0x1f40, false, "", ""),
			Message{Kind: KindLogical, LSN: 0x1f40, Content: []byte{}},
		},
		{
			"update", inTransaction, xlog(0x1f00, tuple(wire{'U'}.u32(16384).u8('N'), text("a"), text("b"))),
			Message{Kind: KindUpdate, LSN: 0x1f00, Relation: outbox},
		},
		{
			"delete", inTransaction, xlog(0x1f00, tuple(wire{'D'}.u32(16384).u8('K'), text("a"), null)),
			Message{Kind: KindDelete, LSN: 0x1f00, Relation: outbox},
		},
		{"truncate", inTransaction, xlog(0x1f00, wire{'T'}.u32(1).u8(0).u32(16384)), Message{Kind: KindTruncate, LSN: 0x1f00}},
		{"type", inTransaction, xlog(0, wire{'Y'}.u32(16400).str("public").str("mood")), Message{Kind: KindType}},
		{"origin", inTransaction, xlog(0, wire{'O'}.u64(0x99).str("upstream")), Message{Kind: KindOrigin}},
		{"keepalive", outside, keepaliveData(0x3000, false), Message{Kind: KindKeepalive, WALEnd: 0x3000}},
		{"keepalive in a transaction", inTransaction, keepaliveData(0x1e00, true), Message{Kind: KindKeepalive, WALEnd: 0x1e00}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := tc.from(t)
			asked, err := d.decode(tc.data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, d.msg); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			if want := tc.name == "keepalive in a transaction"; asked != want {
				t.Errorf("reply asked: got %v, want %v", asked, want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		from func(testing.TB) *decoder
		data []byte
		want string
	}{
		{"nothing", outside, nil, "unknown copy message"},
		{"copy message of another type", outside, []byte("x"), "unknown copy message of type 'x'"},
		{"no change", outside, xlog(1, nil), "malformed change"},
		{"change of a streamed transaction", outside, xlog(1, wire{'S'}.u32(7).u8(1)), "unknown change of type 'S'"},
		{"begin inside a transaction", inTransaction, begin(0x3000, 8), "begins inside another (at 0/2000)"},
		{"commit of nothing", outside, commit(0x2000, 0x2030), "of no transaction"},
		{"commit of another transaction", inTransaction, commit(0x2008, 0x2030), "of the transaction of 0/2000"},
		{"commit that ends before it starts", inTransaction, commit(0x2000, 0x2000), "end 0/2000"},
		{"row outside of a transaction", outside, insert(1, 16384, null, null), "outside of a transaction"},
		{"row of an unknown table", inTransaction, insert(1, 99, null, null), "OID 99"},
		{"row with a value missing", inTransaction, insert(1, 16384, null), "public.outbox: 1 values for 2 columns"},
		{"row with an unchanged TOAST value", inTransaction, insert(1, 16384, null, Value{Format: FormatUnchanged}), "malformed insert"},
		{"row with a negative length", inTransaction, xlog(1, wire{'I'}.u32(16384).u8('N').u16(2).u8('n').u8('t').u32(0xffffffff)), "malformed insert"},
		{"old row in an insert", inTransaction, xlog(1, tuple(wire{'I'}.u32(16384).u8('O'), null, null)), "malformed insert"},
		{"bytes after a row", inTransaction, append(insert(1, 16384, null, null), 0), "malformed insert"},
		{"bytes after a keepalive", outside, append(keepaliveData(1, false), 0), "malformed keepalive"},
		{"more columns than bytes", outside, xlog(0, wire{'R'}.u32(1).str("s").str("t").u8('d').u16(0xffff)), "malformed relation"},
		{"update of an unknown table", inTransaction, xlog(1, wire{'U'}.u32(99)), "malformed update"},
		{"transactional message outside of a transaction", outside, logical(1, true, "p", ""), "outside of a transaction"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := tc.from(t).decode(tc.data)
			var pe *ProtocolError
			if !errors.As(err, &pe) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a ProtocolError with %q", err, tc.want)
			}
		})
	}
}

// A message cut anywhere is refused, and nothing is read past its end.
func TestDecodeTruncated(t *testing.T) {
	t.Parallel()
	messages := map[string][]byte{
		"begin":     begin(0x3000, 8),
		"commit":    commit(0x2000, 0x2030),
		"relation":  relation(16384, "public", "outbox", outboxColumns...),
		"insert":    insert(0x1f00, 16384, text("id"), text("payload")),
		"message":   logical(0x1f40, false, "prefix", "content"),
		"keepalive": keepaliveData(0x3000, true),
	}
	for name, whole := range messages {
		for n := range whole {
			d := inTransaction(t)
			if name == "begin" {
				d = newDecoder()
			}
			_, err := d.decode(whole[:n:n])
			if _, ok := errors.AsType[*ProtocolError](err); !ok {
				t.Errorf("%s cut to %d of %d bytes: got %v, want a ProtocolError", name, n, len(whole), err)
			}
		}
	}
}

func TestDecodeRelations(t *testing.T) {
	t.Parallel()
	d := inTransaction(t)
	decode := func(data []byte) *Relation {
		t.Helper()
		if _, err := d.decode(data); err != nil {
			t.Fatal(err)
		}
		return d.msg.Relation
	}
	first := decode(insert(1, 16384, null, null))
	decode(relation(16500, "public", "other", Column{Name: "id"}))
	if got := decode(insert(2, 16500, null)); got.Name != "other" {
		t.Errorf("second table: got %s", got.Name)
	}
	if got := decode(insert(3, 16384, null, null)); got != first {
		t.Error("first table: another Relation though nothing had changed")
	}
	// After DDL the same OID is described anew, and the old Relation is as it was.
	decode(relation(16384, "public", "outbox", append(outboxColumns[:2:2], Column{Name: "headers", TypeOID: 3802})...))
	if got := decode(insert(4, 16384, null, null, null)); got == first || len(got.Columns) != 3 || len(first.Columns) != 2 {
		t.Errorf("after DDL: got %d columns, before %d", len(got.Columns), len(first.Columns))
	}
}

func TestDecodeTimes(t *testing.T) {
	t.Parallel()
	for _, us := range []uint64{0, commitMicros, 1 << 63, 1<<64 - 1} {
		_ = serverTime(us).String() // any 64 bits are a time, none a panic
	}
	if got := serverTime(0); !got.Equal(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("epoch: got %v", got)
	}
}

func TestDecodeAllocatesNothingPerRow(t *testing.T) {
	d := inTransaction(t)
	messages := [][]byte{
		insert(0x1f00, 16384, text("id"), text(strings.Repeat("x", 2000))),
		keepaliveData(0x1e00, false),
		logical(0x1f40, true, "cdc_relay", "7"),
		commit(0x2000, 0x2030),
		begin(0x2000, 7),
	}
	got := testing.AllocsPerRun(1000, func() {
		for _, m := range messages {
			if _, err := d.decode(m); err != nil {
				t.Fatal(err)
			}
		}
	})
	if got != 0 {
		t.Errorf("got %v allocations, want none", got)
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, size := range map[string]int{"200B": 200, "2kB": 2000} {
		b.Run(name, func(b *testing.B) {
			d := inTransaction(b)
			columns := make([]Column, 6)
			if _, err := d.decode(relation(16384, "public", "outbox", columns...)); err != nil {
				b.Fatal(err)
			}
			row := insert(0x1f00, 16384, text("7f1c5a0e-6f0f-4a55-9a52-0d9b5b1f6d11"), text("order"), text("4711"),
				text("changed"), text(strings.Repeat("x", size)), null)
			b.SetBytes(int64(len(row)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.decode(row); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
