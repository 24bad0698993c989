package wal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// To record the streams anew, give a superuser's connection strings:
//
//	go test ./internal/wal -run 'TestCapture|TestGolden' -update -capture "postgres://…/postgres postgres://…/postgres"
var (
	capture = flag.String("capture", "", "record testdata/pgN.stream from the servers at these space-separated URLs")
	update  = flag.Bool("update", false, "rewrite the golden files")
)

// TestGolden decodes streams that were recorded from real servers and compares
// what comes out with testdata, and with pglogrepl's parser.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.stream")
	if err != nil || len(files) < 2 {
		t.Fatalf("recorded streams: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			recorded, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			d := newDecoder()
			for _, frame := range frames(recorded) {
				if _, err := d.decode(frame); err != nil {
					t.Fatalf("after:\n%s%v", got.String(), err)
				}
				describe(&got, &d.msg)
				agree(t, frame, &d.msg)
			}
			golden := strings.TrimSuffix(file, ".stream") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}

// frames splits a recorded stream: CopyData payloads, each after its length in
// four bytes. What does not fit is left out.
func frames(recorded []byte) [][]byte {
	var list [][]byte
	for len(recorded) >= 4 {
		n := uint64(binary.BigEndian.Uint32(recorded))
		recorded = recorded[4:]
		if n > uint64(len(recorded)) {
			break
		}
		list = append(list, recorded[:n:n])
		recorded = recorded[n:]
	}
	return list
}

// describe writes a message on one line.
func describe(w *strings.Builder, m *Message) {
	fmt.Fprintf(w, "%-9s %-9s", m.Kind, m.LSN)
	switch m.Kind {
	case KindBegin:
		fmt.Fprintf(w, " final %s, xid %d", m.FinalLSN, m.XID)
	case KindCommit:
		fmt.Fprintf(w, " commit %s, end %s", m.CommitLSN, m.EndLSN)
	case KindRelation:
		fmt.Fprintf(w, " %s.%s", m.Relation.Namespace, m.Relation.Name)
		for _, c := range m.Relation.Columns {
			key := ""
			if c.Key {
				key = "*"
			}
			fmt.Fprintf(w, " %q%s", c.Name, key)
		}
	case KindUpdate, KindDelete:
		fmt.Fprintf(w, " %s", m.Relation.Name)
	case KindInsert:
		fmt.Fprintf(w, " %s", m.Relation.Name)
		for i, v := range m.Values {
			fmt.Fprintf(w, " %s=%s", m.Relation.Columns[i].Name, short(v))
		}
	case KindLogical:
		fmt.Fprintf(w, " %q %q transactional %v", m.Prefix, m.Content, m.Transactional)
	case KindKeepalive:
		fmt.Fprintf(w, " end %s", m.WALEnd)
	}
	w.WriteByte('\n')
}

func short(v Value) string {
	switch {
	case v.Format == FormatNull:
		return "NULL"
	case len(v.Data) <= 60:
		return fmt.Sprintf("%c%q", v.Format, v.Data)
	}
	h := fnv.New64a()
	_, _ = h.Write(v.Data)
	return fmt.Sprintf("%c[%d bytes, %x]", v.Format, len(v.Data), h.Sum64())
}

// agree compares a message that was accepted with what pglogrepl makes of it.
func agree(t testing.TB, frame []byte, m *Message) {
	t.Helper()
	if m.Kind == KindKeepalive {
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(frame[1:])
		if err != nil || k.ServerWALEnd != m.WALEnd {
			t.Errorf("keepalive: %v, %v", k, err)
		}
		return
	}
	x, err := pglogrepl.ParseXLogData(frame[1:])
	if err != nil || x.WALStart != m.LSN {
		t.Fatalf("%s: start %s, %v", m.Kind, x.WALStart, err)
	}
	switch m.Kind {
	case KindBegin, KindCommit, KindRelation, KindInsert, KindLogical:
	default:
		return // not decoded further
	}
	parsed, err := pglogrepl.Parse(x.WALData)
	if err != nil {
		t.Fatalf("%s: %v", m.Kind, err)
	}
	same := false
	switch p := parsed.(type) {
	case *pglogrepl.BeginMessage:
		same = p.FinalLSN == m.FinalLSN && p.Xid == m.XID && sameTime(p.CommitTime, m.CommitTime)
	case *pglogrepl.CommitMessage:
		same = p.CommitLSN == m.CommitLSN && p.TransactionEndLSN == m.EndLSN && sameTime(p.CommitTime, m.CommitTime)
	case *pglogrepl.RelationMessage:
		same = sameRelation(p, m.Relation)
	case *pglogrepl.InsertMessage:
		same = p.RelationID == m.Relation.OID && sameValues(p.Tuple.Columns, m.Values)
	case *pglogrepl.LogicalDecodingMessage:
		same = p.Prefix == m.Prefix && bytes.Equal(p.Content, m.Content) && p.Transactional == m.Transactional
	}
	if !same {
		t.Errorf("%s: got %+v, pglogrepl has %+v", m.Kind, m, parsed)
	}
}

// sameTime passes times that pglogrepl cannot hold: it counts nanoseconds.
func sameTime(p, got time.Time) bool {
	return p.Equal(got) || got.Year() < 1700 || got.Year() > 2200
}

func sameRelation(p *pglogrepl.RelationMessage, r *Relation) bool {
	if p.RelationID != r.OID || p.RelationName != r.Name || len(p.Columns) != len(r.Columns) {
		return false
	}
	for i, c := range p.Columns {
		if (Column{Name: c.Name, TypeOID: c.DataType, Key: c.Flags&1 != 0}) != r.Columns[i] {
			return false
		}
	}
	return p.Namespace == r.Namespace || p.Namespace == "" && r.Namespace == "pg_catalog"
}

func sameValues(p []*pglogrepl.TupleDataColumn, values []Value) bool {
	if len(p) != len(values) {
		return false
	}
	for i, c := range p {
		if c.DataType != values[i].Format || !bytes.Equal(c.Data, values[i].Data) {
			return false
		}
	}
	return true
}

// FuzzDecode feeds whole streams, so that relations and open transactions are
// reached. The decoder must refuse or decode, never panic or read past a frame,
// and what it accepts it must understand as pglogrepl does.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/*.stream")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		recorded, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(recorded)
		for _, frame := range frames(recorded) {
			f.Add([]byte(append(wire{}.u32(uint32(len(frame))), frame...)))
		}
	}
	f.Fuzz(func(t *testing.T, recorded []byte) {
		d := newDecoder()
		for _, frame := range frames(recorded) {
			kept := bytes.Clone(frame)
			if _, err := d.decode(frame); err != nil {
				if _, ok := errors.AsType[*ProtocolError](err); !ok {
					t.Fatalf("got %v, want a ProtocolError", err)
				}
				return
			}
			if !bytes.Equal(kept, frame) {
				t.Fatal("the decoder wrote to its input")
			}
			if d.msg.Kind == KindInsert && len(d.msg.Values) != len(d.msg.Relation.Columns) {
				t.Fatalf("%d values for %d columns", len(d.msg.Values), len(d.msg.Relation.Columns))
			}
			agree(t, frame, &d.msg)
		}
	})
}

// TestCapture records testdata/pgN.stream. It does nothing without -capture.
func TestCapture(t *testing.T) {
	for url := range strings.FieldsSeq(*capture) {
		record(t, url)
	}
}

func record(t *testing.T, url string) {
	t.Helper()
	ctx := t.Context()
	exec := func(c *pgconn.PgConn, sql string) {
		t.Helper()
		if _, err := c.Exec(ctx, sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	admin, err := pgconn.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	exec(admin, "DROP DATABASE IF EXISTS wal_capture")
	exec(admin, "CREATE DATABASE wal_capture")
	defer exec(admin, "DROP DATABASE wal_capture WITH (FORCE)")

	c := Config{URL: url, Slot: "capture", Publications: []string{"capture"}}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	config, err := c.parse()
	if err != nil {
		t.Fatal(err)
	}
	stream := inDatabase(t, config, "wal_capture")
	dropper := inDatabase(t, config, "wal_capture")
	defer dropper.Close(context.WithoutCancel(ctx))
	defer exec(dropper, "DROP_REPLICATION_SLOT capture WAIT")
	defer stream.Close(context.WithoutCancel(ctx))
	if config, err = pgconn.ParseConfig(url); err != nil {
		t.Fatal(err)
	}
	writer := inDatabase(t, config, "wal_capture")
	defer writer.Close(context.WithoutCancel(ctx))
	script, err := os.ReadFile("testdata/capture.sql")
	if err != nil {
		t.Fatal(err)
	}
	for sql := range strings.SplitSeq(string(script), "\n\n") {
		exec(writer, sql)
	}

	version := stream.ParameterStatus("server_version")
	major, _, _ := strings.Cut(version, ".")
	err = pglogrepl.StartReplication(ctx, stream, "capture", 0, pglogrepl.StartReplicationOptions{
		PluginArgs: pluginArgs(c.Publications, 140000),
	})
	if err != nil {
		t.Fatal(err)
	}
	recorded := receiveThrough(t, stream, "capture\x00\x00\x00\x00\x03end")
	if err := os.WriteFile("testdata/pg"+major+".stream", recorded, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Logf("recorded PostgreSQL %s: %d bytes", version, len(recorded))
}

// receiveThrough returns what the stream sends, each message with its length before it, through the one that holds last.
func receiveThrough(t *testing.T, stream *pgconn.PgConn, last string) (recorded wire) {
	t.Helper()
	for !bytes.Contains(recorded, []byte(last)) {
		m, err := stream.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		data, ok := m.(*pgproto3.CopyData)
		if !ok {
			t.Fatalf("got %T", m)
		}
		recorded = append(recorded.u32(uint32(len(data.Data))), data.Data...)
	}
	return recorded
}

func inDatabase(t *testing.T, config *pgconn.Config, name string) *pgconn.PgConn {
	t.Helper()
	config.Database = name
	c, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
