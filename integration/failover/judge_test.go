package failover_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// row is a row of the outbox table.
type row struct{ id, key string }

// copied is a record: one copy of a row.
type copied struct {
	row

	partition int32
	offset    int64
	commit    uint64 // where the transaction was committed, as the position header says
}

func (c copied) String() string {
	return fmt.Sprintf("%s of %s at %d@%d, committed at %X", c.id, c.key, c.partition, c.offset, c.commit)
}

// verdict compares the table, as the server that takes rows has it, with the topic. Rows are written by one connection at
// a time, so that their sequence is the order of their commits.
type verdict struct {
	rows    int
	copies  []copied
	missing []row    // committed, not on the topic
	moved   []string // first copies that are out of order, or not in the partition of their key
	// phantoms are records of rows that the server does not have: it has never had them, or not any more.
	phantoms []copied
	repeats  []copied // second and further copies
}

// judge waits until every row of the table is on the topic, and the slot has passed it, and fails the test when a row
// stays missing or first copies are out of order. What may be repeated or a phantom is the caller's to say.
func (s *site) judge() verdict {
	s.t.Helper()
	end := s.Text(`SELECT pg_current_wal_insert_lsn()`)
	rows := s.rows()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.ConsumeTopics(s.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	s.must(err)
	defer client.Close()
	settled := false
	var v verdict
	var copies []copied
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for {
		settled = settled || s.confirmed(ctx, end)
		ended := settled // what is read from here on ends behind the last record
		got := poll(ctx, s.t, client)
		copies = append(copies, got...)
		if v = compare(rows, copies); ended && len(got) == 0 && len(v.missing) == 0 || ctx.Err() != nil {
			break
		}
	}
	s.t.Logf("%d rows, %d records, %d missing, %d moved, %d phantoms, %d repeats",
		v.rows, len(v.copies), len(v.missing), len(v.moved), len(v.phantoms), len(v.repeats))
	if !settled {
		s.t.Errorf("the slot has not passed %s", end)
	}
	if len(v.missing) > 0 {
		s.t.Errorf("%d rows are on no topic, the first is %v", len(v.missing), v.missing[0])
	}
	if len(v.moved) > 0 {
		s.t.Errorf("%d rows are out of order: %s", len(v.moved), strings.Join(v.moved[:min(5, len(v.moved))], "; "))
	}
	return v
}

// confirmed says whether the slot has passed a position. The one where the server would write next may lie behind the
// header of a page that has just been begun.
func (s *site) confirmed(ctx context.Context, end string) bool {
	const header = 40
	got, err := testenv.TextAt(ctx, s.URL, `SELECT confirmed_flush_lsn + $3 >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, s.Slot, end, header)
	return err == nil && got == "true"
}

// rows are those that can be published.
func (s *site) rows() []row {
	s.t.Helper()
	ctx := s.t.Context()
	conn, err := pgx.Connect(ctx, s.URL)
	s.must(err)
	defer conn.Close(context.WithoutCancel(ctx))
	result, err := conn.Query(ctx, `SELECT id::text, aggregateid FROM public.outbox WHERE aggregatetype = 'order' ORDER BY seq`)
	s.must(err)
	rows, err := pgx.CollectRows(result, func(r pgx.CollectableRow) (out row, err error) {
		return out, r.Scan(&out.id, &out.key)
	})
	s.must(err)
	return rows
}

// poll returns what comes within a moment.
func poll(ctx context.Context, t *testing.T, client *kgo.Client) []copied {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	var out []copied
	client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
		c := copied{row: row{key: string(r.Key)}, partition: r.Partition, offset: r.Offset}
		for _, h := range r.Headers {
			switch h.Key {
			case "id":
				c.id = string(h.Value)
			case positionHeader:
				c.commit = commitOf(string(h.Value))
			}
		}
		out = append(out, c)
	})
	return out
}

const positionHeader = "cdc-relay-position"

// commitOf reads the commit's position out of the header; see docs/position-header.md.
func commitOf(header string) uint64 {
	fields := strings.Split(header, ".")
	if len(fields) != 10 || fields[0] != "1" {
		return 0
	}
	commit, _ := strconv.ParseUint(fields[5], 16, 64) // 0: no position of version 1
	return commit
}

// compare judges the copies, which are in the order of each partition.
func compare(rows []row, copies []copied) verdict {
	v := verdict{rows: len(rows), copies: copies}
	home := map[string]int32{} // by key
	seen := map[string]bool{}  // by id
	known := map[string]bool{}
	for _, r := range rows {
		known[r.id] = true
	}
	first := map[string][]string{} // ids by key
	for _, c := range copies {
		if _, placed := home[c.key]; !placed {
			home[c.key] = c.partition
		}
		switch {
		case home[c.key] != c.partition:
			v.moved = append(v.moved, c.String()+" is in another partition than its key")
		case seen[c.id]:
			v.repeats = append(v.repeats, c)
		case !known[c.id]:
			v.phantoms = append(v.phantoms, c)
		default:
			first[c.key] = append(first[c.key], c.id)
		}
		seen[c.id] = true
	}
	next := map[string]int{}
	for _, r := range rows {
		switch at := next[r.key]; {
		case !seen[r.id]:
			v.missing = append(v.missing, r)
		case at < len(first[r.key]) && first[r.key][at] == r.id:
			next[r.key]++
		default:
			v.moved = append(v.moved, fmt.Sprintf("%s of %s", r.id, r.key))
			next[r.key]++
		}
	}
	return v
}

// noPhantoms fails the test when the topic has rows that the server does not have.
func (v verdict) noPhantoms(t *testing.T) {
	t.Helper()
	if len(v.phantoms) > 0 {
		t.Errorf("%d records are of rows that the server does not have, the first is %s", len(v.phantoms), v.phantoms[0])
	}
}

// repeatsOnlyFrom fails the test when a row was repeated that was committed before a position.
func (v verdict) repeatsOnlyFrom(t *testing.T, lsn string) {
	t.Helper()
	from := parseLSN(t, lsn)
	for _, c := range v.repeats {
		if c.commit < from {
			t.Errorf("%s was confirmed before %s and is repeated", c, lsn)
			return
		}
	}
}

func parseLSN(t *testing.T, text string) uint64 {
	t.Helper()
	high, low, _ := strings.Cut(text, "/")
	h, err := strconv.ParseUint(high, 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	l, err := strconv.ParseUint(low, 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	return h<<32 | l
}

// The judge notices what it is for.
func TestJudge(t *testing.T) {
	t.Parallel()
	a, b, c := row{"a", "k"}, row{"b", "k"}, row{"c", "l"}
	rows := []row{a, b, c}
	at := func(r row, partition int32) copied { return copied{row: r, partition: partition} }
	for name, tt := range map[string]struct {
		copies                             []copied
		missing, moved, phantoms, repeated int
	}{
		"good":              {[]copied{at(a, 0), at(c, 1), at(b, 0)}, 0, 0, 0, 0},
		"missing":           {[]copied{at(a, 0), at(c, 1)}, 1, 0, 0, 0},
		"missing, reversed": {[]copied{at(b, 0), at(c, 1)}, 1, 0, 0, 0},
		"reversed":          {[]copied{at(b, 0), at(a, 0), at(c, 1)}, 0, 2, 0, 0},
		"repeated":          {[]copied{at(a, 0), at(b, 0), at(a, 0), at(c, 1)}, 0, 0, 0, 1},
		"elsewhere":         {[]copied{at(a, 0), at(b, 1), at(c, 1)}, 0, 2, 0, 0},
		"phantom":           {[]copied{at(a, 0), at(row{"x", "k"}, 0), at(b, 0), at(c, 1)}, 0, 0, 1, 0},
	} {
		v := compare(rows, tt.copies)
		if len(v.missing) != tt.missing || len(v.moved) != tt.moved || len(v.phantoms) != tt.phantoms || len(v.repeats) != tt.repeated {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
