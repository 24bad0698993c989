package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// arrival is one event at the reader.
type arrival struct {
	event
	kind      string // what happened
	partition int32
	latency   time.Duration // from the application's COMMIT to here
}

// reader reads the topics from their beginning, to compare. It shares no code with the relay nor with the consumers, not
// even the Kafka client.
type reader struct {
	client     *kgo.Client
	commitSent func(id string) (time.Time, bool)
	end        func() map[place]int64 // end of each partition

	mu        sync.Mutex
	records   []event // all, in the order in which they were read
	seen      map[string]bool
	latencies []time.Duration // of first copies
	last      arrival         // the newest first copy
	next      map[place]int64 // next offset
	arrived   chan struct{}   // closed and replaced whenever something arrives
}

// newReader connects to the brokers. The caller closes it.
func newReader(brokers, topics []string, commitSent func(string) (time.Time, bool)) (*reader, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, fmt.Errorf("start reader: %w", err)
	}
	return &reader{
		client: client, commitSent: commitSent,
		seen: map[string]bool{}, next: map[place]int64{}, arrived: make(chan struct{}),
	}, nil
}

func (r *reader) close() error {
	r.client.Close()
	return nil
}

// run reads until ctx ends.
func (r *reader) run(ctx context.Context) error {
	for {
		fetches := r.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("run reader: %w", err)
		}
		r.take(fetches, time.Now())
	}
}

func (r *reader) take(fetches kgo.Fetches, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fetches.EachRecord(func(record *kgo.Record) {
		a := parse(record)
		r.records = append(r.records, a.event)
		r.next[place{record.Topic, record.Partition}] = record.Offset + 1
		if r.seen[a.id] {
			return
		}
		r.seen[a.id] = true
		if sent, found := r.commitSent(a.id); found {
			a.latency = now.Sub(sent)
			r.latencies = append(r.latencies, a.latency)
			r.last = a
		}
	})
	close(r.arrived)
	r.arrived = make(chan struct{})
}

// parse turns a record into an event. What it cannot read stays empty, and the comparison will not find it in the table.
func parse(r *kgo.Record) arrival {
	a := arrival{event: event{key: string(r.Key)}, partition: r.Partition}
	for _, header := range r.Headers {
		switch header.Key {
		case "id":
			a.id = string(header.Value)
		case "type":
			a.kind = string(header.Value)
		case "aggregateversion":
			a.version, _ = strconv.ParseInt(string(header.Value), 10, 64)
		}
	}
	return a
}

// state returns how many events have arrived, the newest of them, and the latencies of the last so many.
func (r *reader) state(window int) (count int, last arrival, latencies []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen), r.last, slices.Clone(r.latencies[max(0, len(r.latencies)-window):])
}

// all returns every record in the order in which they were read, and every latency.
func (r *reader) all() ([]event, []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.records), slices.Clone(r.latencies)
}

// waitEvents waits until all these events have arrived, and returns false when ctx ends or when nothing arrives for as
// long as patience.
func (r *reader) waitEvents(ctx context.Context, patience time.Duration, events []event) bool {
	return r.wait(ctx, patience, func() bool {
		for len(events) > 0 && r.seen[events[0].id] {
			events = events[1:]
		}
		return len(events) == 0
	})
}

// waitEnd is like waitEvents and waits for the end of the topics.
func (r *reader) waitEnd(ctx context.Context, patience time.Duration) bool {
	return r.wait(ctx, patience, func() bool {
		for partition, end := range r.end() {
			if r.next[partition] < end {
				return false
			}
		}
		return true
	})
}

// wait asks done, which is called with the lock held, whenever something has arrived.
func (r *reader) wait(ctx context.Context, patience time.Duration, done func() bool) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		r.mu.Lock()
		finished, arrived := done(), r.arrived
		r.mu.Unlock()
		if finished {
			return true
		}
		select {
		case <-arrived:
			timer.Reset(patience)
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// percentile returns the smallest value that at least so many percent do not exceed, 0 without values. It sorts them.
func percentile(values []time.Duration, percent int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[(len(values)*percent+99)/100-1]
}
