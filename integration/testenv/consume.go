package testenv

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Record is a record as a consumer sees it.
type Record struct {
	Partition  int32
	Offset     int64
	Key, Value []byte // nil is NULL
	Headers    []Header
	Time       time.Time
	Seen       time.Time // when the consumer got it
}

// Header is one header of a record.
type Header struct {
	Name  string
	Value []byte
}

// Header returns the value of the first header of that name, and whether there is one.
func (r Record) Header(name string) (string, bool) {
	for _, h := range r.Headers {
		if h.Name == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// Consume reads a topic from its beginning until it has at least count records, and returns them by partition and
// offset. It fails the test when that takes longer than limit. The topic must exist.
func (e *Env) Consume(topic string, count int, limit time.Duration) []Record {
	e.t.Helper()
	return Consume(e.t, e.Brokers, topic, count, limit)
}

// Consume is [Env.Consume] for any brokers.
func Consume(t testing.TB, brokers []string, topic string, count int, limit time.Duration) []Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var records []Record
	for len(records) < count {
		fetches := client.PollFetches(ctx)
		now := time.Now()
		fetches.EachRecord(func(r *kgo.Record) { records = append(records, convert(r, now)) })
		if ctx.Err() != nil {
			t.Fatalf("topic %s has %d of %d records after %v", topic, len(records), count, limit)
		}
		if err := fetchError(fetches); err != nil {
			t.Fatalf("read topic %s: %v", topic, err)
		}
	}
	sort.SliceStable(records, func(i, j int) bool {
		a, b := records[i], records[j]
		return a.Partition < b.Partition || a.Partition == b.Partition && a.Offset < b.Offset
	})
	return records
}

func fetchError(fetches kgo.Fetches) error {
	var errs []error
	fetches.EachError(func(topic string, partition int32, err error) {
		errs = append(errs, fmt.Errorf("%s/%d: %w", topic, partition, err))
	})
	return errors.Join(errs...)
}

func convert(r *kgo.Record, now time.Time) Record {
	out := Record{Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Time: r.Timestamp, Seen: now}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, Header{Name: h.Key, Value: h.Value})
	}
	return out
}
