package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// arrival is one event at the consumer.
type arrival struct {
	event
	kind      string // what happened to the order
	partition int32
	latency   time.Duration // from the application's COMMIT to here
}

// consumer reads the topic from its beginning. It shares no code with the relay, not even the Kafka client.
type consumer struct {
	client     *kgo.Client
	commitSent func(id string) (time.Time, bool)
	end        func() map[int32]int64 // end of the topic, by partition

	mu        sync.Mutex
	records   []event // all, in the order in which they were read
	seen      map[string]bool
	latencies []time.Duration // of first copies
	last      arrival         // the newest first copy
	next      map[int32]int64 // next offset, by partition
	arrived   chan struct{}   // closed and replaced whenever something arrives
}

// newConsumer connects to the brokers. The caller closes it.
func newConsumer(brokers []string, topic string, commitSent func(string) (time.Time, bool)) (*consumer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, fmt.Errorf("start consumer: %w", err)
	}
	return &consumer{
		client: client, commitSent: commitSent,
		seen: map[string]bool{}, next: map[int32]int64{}, arrived: make(chan struct{}),
	}, nil
}

func (c *consumer) close() error {
	c.client.Close()
	return nil
}

// run reads until ctx ends.
func (c *consumer) run(ctx context.Context) error {
	for {
		fetches := c.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("run consumer: %w", err)
		}
		c.take(fetches, time.Now())
	}
}

func (c *consumer) take(fetches kgo.Fetches, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fetches.EachRecord(func(r *kgo.Record) {
		a := parse(r)
		c.records = append(c.records, a.event)
		c.next[r.Partition] = r.Offset + 1
		if c.seen[a.id] {
			return
		}
		c.seen[a.id] = true
		if sent, found := c.commitSent(a.id); found {
			a.latency = now.Sub(sent)
			c.latencies = append(c.latencies, a.latency)
			c.last = a
		}
	})
	close(c.arrived)
	c.arrived = make(chan struct{})
}

// parse turns a record into an event. What it cannot read stays empty, and the comparison will not find it in the table.
func parse(r *kgo.Record) arrival {
	a := arrival{event: event{order: string(r.Key)}, partition: r.Partition}
	for _, header := range r.Headers {
		switch header.Key {
		case "id":
			a.id = string(header.Value)
		case "type":
			a.kind = string(header.Value)
		}
	}
	var payload struct {
		Version int64 `json:"version"`
	}
	if json.Unmarshal(r.Value, &payload) == nil {
		a.version = payload.Version
	}
	return a
}

// state returns how many events have arrived, the newest of them, and the latencies of the last so many.
func (c *consumer) state(window int) (count int, last arrival, latencies []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen), c.last, slices.Clone(c.latencies[max(0, len(c.latencies)-window):])
}

// all returns every record in the order in which they were read, and every latency.
func (c *consumer) all() ([]event, []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.records), slices.Clone(c.latencies)
}

// waitEvents waits until all these events have arrived, and returns false when ctx ends or when nothing arrives for as
// long as patience.
func (c *consumer) waitEvents(ctx context.Context, patience time.Duration, events []event) bool {
	return c.wait(ctx, patience, func() bool {
		for len(events) > 0 && c.seen[events[0].id] {
			events = events[1:]
		}
		return len(events) == 0
	})
}

// waitEnd is like waitEvents and waits for the end of the topic.
func (c *consumer) waitEnd(ctx context.Context, patience time.Duration) bool {
	return c.wait(ctx, patience, func() bool {
		for partition, end := range c.end() {
			if c.next[partition] < end {
				return false
			}
		}
		return true
	})
}

// wait asks done, which is called with the lock held, whenever something has arrived.
func (c *consumer) wait(ctx context.Context, patience time.Duration, done func() bool) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		c.mu.Lock()
		finished, arrived := done(), c.arrived
		c.mu.Unlock()
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
