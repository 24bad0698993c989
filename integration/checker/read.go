package checker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Read reads the topics from where it left off to their present end.
func (c *Checker) Read(ctx context.Context) error {
	ends, err := c.ends(ctx)
	if err != nil {
		return fmt.Errorf("find the ends of the topics: %w", err)
	}
	// After the ends: whatever a record before them has overtaken is a dead letter by now.
	if err := c.readLetters(ctx); err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	from := map[string]map[int32]kgo.Offset{}
	left := 0
	for topic, partitions := range ends {
		for partition, end := range partitions {
			if next := c.next[topic][partition]; next < end {
				if from[topic] == nil {
					from[topic] = map[int32]kgo.Offset{}
				}
				from[topic][partition] = kgo.NewOffset().At(next)
				left++
			}
		}
	}
	if left == 0 {
		return nil
	}
	c.client.AddConsumePartitions(from)
	defer func() {
		for topic, partitions := range from {
			for partition := range partitions {
				c.client.RemoveConsumePartitions(map[string][]int32{topic: {partition}})
			}
		}
	}()
	for left > 0 {
		fetches := c.client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			return fmt.Errorf("read %s/%d: %w", failed.Topic, failed.Partition, failed.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end := ends[r.Topic][r.Partition]
			if r.Offset >= end || r.Offset < c.next[r.Topic][r.Partition] {
				return // Left to the next Read, or read by the last.
			}
			c.enter(r)
			if r.Offset == end-1 {
				left--
			}
		})
	}
	return nil
}

// enter puts a record into the ledger.
func (c *Checker) enter(r *kgo.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next[r.Topic] == nil {
		c.next[r.Topic] = map[int32]int64{}
	}
	c.next[r.Topic][r.Partition] = r.Offset + 1
	if r.Attrs.IsControl() {
		return
	}
	in := record{place: place{topic: r.Topic, partition: r.Partition}, offset: r.Offset, key: string(r.Key), value: r.Value}
	in.producer = producer{id: r.ProducerID, epoch: r.ProducerEpoch}
	for _, header := range r.Headers {
		switch header.Key {
		case "id":
			in.id = string(header.Value)
		case positionHeader:
			in.position, _ = parsePosition(string(header.Value)) // None is one that no copy shares.
		case replayHeader:
			in.replay, _ = strconv.Atoi(string(header.Value)) // No number is no replay.
		}
	}
	c.seen.enter(in)
}

// ends returns the offset after the last record of each partition. A topic that does not exist is left out.
func (c *Checker) ends(ctx context.Context) (map[string]map[int32]int64, error) {
	metadata := kmsg.NewPtrMetadataRequest()
	for _, name := range c.Topics() {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = new(name)
		metadata.Topics = append(metadata.Topics, topic)
	}
	known, err := metadata.RequestWith(ctx, c.client)
	if err != nil {
		return nil, err
	}
	list := kmsg.NewPtrListOffsetsRequest()
	for _, topic := range known.Topics {
		if errors.Is(kerr.ErrorForCode(topic.ErrorCode), kerr.UnknownTopicOrPartition) || topic.Topic == nil {
			continue
		}
		of := kmsg.NewListOffsetsRequestTopic()
		of.Topic = *topic.Topic
		for _, partition := range topic.Partitions {
			latest := kmsg.NewListOffsetsRequestTopicPartition()
			latest.Partition, latest.Timestamp = partition.Partition, -1
			of.Partitions = append(of.Partitions, latest)
		}
		list.Topics = append(list.Topics, of)
	}
	ends := map[string]map[int32]int64{}
	if len(list.Topics) == 0 {
		return ends, nil
	}
	response, err := list.RequestWith(ctx, c.client)
	if err != nil {
		return nil, err
	}
	for _, topic := range response.Topics {
		ends[topic.Topic] = map[int32]int64{}
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return nil, err
			}
			ends[topic.Topic][partition.Partition] = partition.Offset
		}
	}
	return ends, nil
}

// Sample notes the slot's confirmed position, and after it how far the topics reach. Report judges the two: what is
// confirmed must be there. A sample that is taken while no relay runs is exact; another can miss a row that was
// confirmed too early and reached its topic before the second look.
func (c *Checker) Sample(ctx context.Context) error {
	_, err := c.connectAndSample(ctx)
	return err
}

func (c *Checker) connectAndSample(ctx context.Context) (sample, error) {
	conn, err := pgx.Connect(ctx, c.cfg.URL)
	if err != nil {
		return sample{}, fmt.Errorf("sample the slot: %w", err)
	}
	defer conn.Close(ctx)
	return c.sample(ctx, conn)
}

func (c *Checker) sample(ctx context.Context, conn *pgx.Conn) (sample, error) {
	var s sample
	err := conn.QueryRow(ctx, `SELECT coalesce((confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, 0),
		(extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM pg_replication_slots
		WHERE slot_name = $1`, c.cfg.Slot).Scan(&s.confirmed, &s.at)
	if err != nil {
		return sample{}, fmt.Errorf("sample slot %s: %w", c.cfg.Slot, err)
	}
	if s.ends, err = c.ends(ctx); err != nil {
		return sample{}, fmt.Errorf("sample the ends of the topics: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples = append(c.samples, s)
	return s, nil
}

// Watch takes a sample at every interval until ctx ends. Servers that are gone for a while cost it samples, no more.
func (c *Checker) Watch(ctx context.Context, interval time.Duration) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for ctx.Err() == nil {
		var err error
		if conn == nil {
			conn, err = pgx.Connect(ctx, c.cfg.URL)
		}
		if err == nil {
			if _, err = c.sample(ctx, conn); err != nil && conn.IsClosed() {
				conn = nil
			}
		}
		_ = pause(ctx, interval)
	}
}
