package resume_test

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// place is a partition.
type place struct {
	topic     string
	partition int32
}

// record is a record that a relay has written.
type record struct {
	place
	offset     int64
	id         int // of the row; a key's rows have rising ids
	key, value string
	history    string
	count      uint64 // of partitions, when it was placed
	raw        *kgo.Record
}

// foreign begins the key of every record that this package writes itself.
const foreign = "foreign"

// read reads the relays' records of all topics, from the given offsets or the start to the present end, by place and
// offset.
func (s *story) read(from map[place]int64) []record {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	left, at := map[place]int64{}, map[string]map[int32]kgo.Offset{}
	for _, topic := range s.topics {
		starts := s.Starts(topic)
		at[topic] = map[int32]kgo.Offset{}
		for i, end := range s.Ends(topic) {
			p := place{topic, int32(i)}
			if start := max(starts[i], from[p]); start < end {
				left[p], at[topic][p.partition] = end, kgo.NewOffset().At(start)
			}
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.ConsumePartitions(at), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.KeepControlRecords()) // One of them may be the last.
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	var all []record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			s.t.Fatalf("read the topics: %v; not at their end: %v", err, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			p := place{r.Topic, r.Partition}
			end, reading := left[p]
			if r.Offset+1 >= end {
				delete(left, p)
			}
			if reading && r.Offset < end && !r.Attrs.IsControl() && !strings.HasPrefix(string(r.Key), foreign) {
				all = append(all, s.parse(p, r))
			}
		})
	}
	slices.SortFunc(all, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
	})
	return all
}

func (s *story) parse(p place, r *kgo.Record) record {
	s.t.Helper()
	out := record{place: p, offset: r.Offset, key: string(r.Key), value: string(r.Value), raw: r}
	for _, h := range r.Headers {
		switch h.Key {
		case "id":
			id, err := strconv.Atoi(string(h.Value))
			if err != nil {
				s.t.Fatal(err)
			}
			out.id = id
		case "cdc-relay-position":
			if parts := strings.Split(string(h.Value), "."); len(parts) > 4 {
				out.history = parts[1]
				out.count, _ = strconv.ParseUint(parts[4], 16, 32) // What is no number is foreign.
			}
		}
	}
	return out
}

// put appends records to partitions of the relay's topic as another producer; with a transaction, in one that is
// committed or else aborted.
func (s *story) put(records []*kgo.Record, transaction bool, commit bool) {
	s.t.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(s.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(s.topics[0])}
	if transaction {
		opts = append(opts, kgo.TransactionalID(s.Prefix+strconv.FormatBool(commit)))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	ctx := s.t.Context()
	if transaction {
		err = client.BeginTransaction()
	}
	if err == nil {
		err = client.ProduceSync(ctx, records...).FirstErr()
	}
	if err == nil && transaction {
		err = client.EndTransaction(ctx, kgo.TransactionEndTry(commit))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// strangers are records of another producer, n for each partition. Some have headers like ours, and mean nothing.
func strangers(n int) (records []*kgo.Record) {
	headers := [][]kgo.RecordHeader{
		nil,
		{{Key: "cdc-relay-position", Value: []byte("not a position")}},
		{{Key: "id", Value: []byte("7")}, {Key: "cdc-relay-position", Value: nil}},
		// Another history, far ahead.
		{{Key: "cdc-relay-position", Value: []byte(
			"1.00000000000000a1.00000001.00000000000000f3.00000004.ffffffff00000010.ffffffff00000008.r.00000007.cbf29ce484222325")}},
	}
	for i := range n * partitions {
		records = append(records, &kgo.Record{
			Partition: int32(i % partitions), Key: []byte(foreign), Value: []byte("of another producer"),
			Headers: headers[i/partitions%len(headers)],
		})
	}
	return records
}
