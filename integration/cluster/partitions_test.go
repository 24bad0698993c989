package cluster_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// partitionsOf is the partition count in a record's position header: the fifth of its parts, in hexadecimal.
func partitionsOf(t *testing.T, r testenv.Record) int {
	t.Helper()
	position, _ := r.Header("cdc-relay-position")
	parts := strings.Split(position, ".")
	n, err := strconv.ParseUint(parts[min(4, len(parts)-1)], 16, 32)
	if err != nil {
		t.Fatalf("position %q: %v", position, err)
	}
	return int(n)
}

// write inserts rows of all keys, one transaction after another, until ctx ends, and returns how many.
func write(ctx context.Context, t *testing.T, s *scene.Scene, keys int) (rows int) {
	conn := s.Conn()
	for ctx.Err() == nil {
		const each = 100
		if _, err := conn.Exec(t.Context(), `INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
			SELECT 'order', 'key-' || g % $3, g::text FROM generate_series($1::int, $2::int) g`, rows+1, rows+each, keys); err != nil {
			t.Error(err)
			return rows
		}
		rows += each
	}
	return rows
}

// The partition count grows twice under load. A key may move, once per growth, into a partition in use too; nothing is
// lost or repeated, and no row of a key is on a new partition before all earlier ones are on the old.
func TestPartitionsGrow(t *testing.T) {
	s := scene.New(t, brokers(t).addrs())
	const keys = 60
	counts := []int{4, 6, 8}
	topic := s.CreateTopic("order", counts[0], "message.timestamp.type", "LogAppendTime", "min.insync.replicas", "2")
	r := s.Start(nil)
	ctx, cancel := context.WithCancel(t.Context())
	rows := 0
	var writer sync.WaitGroup
	writer.Go(func() { rows = write(ctx, t, s, keys) })
	for i, n := range counts {
		if i > 0 {
			s.Grow(topic, n)
		}
		testenv.Until(t, patience, func(context.Context) error {
			ends := s.Ends(topic)
			if len(ends) < n { // metadata that is a moment old
				return fmt.Errorf("%d of %d partitions", len(ends), n)
			}
			if end := ends[n-1]; end < 50 {
				return fmt.Errorf("partition %d has %d records", n-1, end)
			}
			return nil
		})
	}
	cancel()
	writer.Wait()
	got := s.Consume(topic, rows, patience)
	t.Logf("%d rows", rows)
	if n := s.Count(topic); n != rows || len(got) != rows {
		t.Errorf("%d records for %d rows", n, rows)
	}
	byKey := map[string][]testenv.Record{}
	for _, rec := range got {
		byKey[string(rec.Key)] = append(byKey[string(rec.Key)], rec)
	}
	moved := map[int]int{}
	for key, records := range byKey {
		slices.SortStableFunc(records, func(a, b testenv.Record) int {
			return cmp.Or(cmp.Compare(partitionsOf(t, a), partitionsOf(t, b)), cmp.Compare(a.Offset, b.Offset))
		})
		for n := range moves(t, key, records) {
			moved[n]++
		}
	}
	if moved[6] == 0 || moved[8] == 0 {
		t.Errorf("keys that moved, by the new count: %v; want some each time", moved)
	}
	r.WaitReady(patience)
	s.Stop(r)
}

// moves judges the records of one key, in order of partition count and offset, and returns the counts that moved it.
func moves(t *testing.T, key string, records []testenv.Record) map[int]bool {
	t.Helper()
	moved := map[int]bool{}
	last := 0
	for i, rec := range records {
		n, err := strconv.Atoi(string(rec.Value))
		if err != nil || n <= last {
			t.Errorf("key %s: row %q comes after row %d", key, rec.Value, last)
		}
		last = n
		if i == 0 {
			continue
		}
		before, count := records[i-1], partitionsOf(t, rec)
		switch same := partitionsOf(t, before) == count; {
		case rec.Partition == before.Partition:
		case same:
			t.Errorf("key %s is in partitions %d and %d of %d", key, before.Partition, rec.Partition, count)
		default:
			moved[count] = true
			if rec.Time.Before(before.Time) {
				t.Errorf("key %s: row %d was appended to partition %d before row %s to partition %d",
					key, n, rec.Partition, before.Value, before.Partition)
			}
		}
	}
	return moved
}
