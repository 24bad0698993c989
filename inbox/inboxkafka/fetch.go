package inboxkafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	fetchAPI "github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/cdc-relay/cdc-relay/inbox"
)

const (
	// fetchWait is how long a broker holds a fetch that finds nothing.
	fetchWait = 500 * time.Millisecond
	// fetchTimeout bounds a fetch that is not answered.
	fetchTimeout = 10 * time.Second
	// readCommitted leaves out the records of transactions that are open or were aborted,
	// with the help of the list that the broker sends (KIP-98).
	readCommitted = 1
	// abortMarker is the type of a control record that ends an aborted transaction.
	abortMarker = 0
)

// fetched is the answer to one fetch of a partition.
type fetched struct {
	messages []inbox.Message
	next     int64 // where to go on; the same offset when there was nothing
	end      int64 // of the partition
}

// fetch reads a partition from an offset on.
func fetch(ctx context.Context, client *kafka.Client, topic string, partition int, offset int64, maxBytes int) (fetched, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	answer, err := client.Transport.RoundTrip(ctx, client.Addr, &fetchAPI.Request{
		ReplicaID: -1, MaxWaitTime: int32(fetchWait.Milliseconds()), MinBytes: 1, MaxBytes: int32(maxBytes),
		IsolationLevel: readCommitted, SessionID: -1, SessionEpoch: -1,
		Topics: []fetchAPI.RequestTopic{{Topic: topic, Partitions: []fetchAPI.RequestPartition{{
			Partition: int32(partition), CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: int32(maxBytes),
		}}}},
	})
	if err != nil {
		return fetched{}, err
	}
	response, ok := answer.(*fetchAPI.Response)
	if !ok || len(response.Topics) != 1 || len(response.Topics[0].Partitions) != 1 {
		return fetched{}, fmt.Errorf("unexpected answer %T to a fetch of one partition", answer)
	}
	p := &response.Topics[0].Partitions[0]
	for _, code := range []int16{response.ErrorCode, p.ErrorCode} {
		if code != 0 {
			return fetched{}, kafka.Error(code)
		}
	}
	r := reading{topic: topic, partition: partition, from: offset, aborted: p.AbortedTransactions}
	slices.SortFunc(r.aborted, func(a, b fetchAPI.ResponseTransaction) int { return int(min(1, max(-1, a.FirstOffset-b.FirstOffset))) })
	r.out = fetched{next: offset, end: p.HighWatermark}
	if p.RecordSet.Records == nil {
		return r.out, nil
	}
	if err := r.all(p.RecordSet.Records); err != nil {
		return fetched{}, fmt.Errorf("read records of %s, partition %d: %w", topic, partition, err)
	}
	if r.out.next == offset && r.batches > 0 {
		r.out.next++ // a batch that compaction has emptied is answered for each of its offsets
	}
	return r.out, nil
}

// reading turns what a broker sent into messages.
type reading struct {
	topic     string
	partition int
	from      int64
	aborted   []fetchAPI.ResponseTransaction // by first offset; those not begun yet
	open      map[int64]bool                 // producers whose transaction is aborted
	batches   int
	out       fetched
}

func (r *reading) all(records protocol.RecordReader) error {
	stream, ok := records.(*protocol.RecordStream)
	if !ok {
		return r.batch(records, false)
	}
	for _, one := range stream.Records {
		r.batches++
		var err error
		switch b := one.(type) {
		case *protocol.ControlBatch:
			err = r.control(b)
		case *protocol.RecordBatch:
			r.begin(b.BaseOffset)
			err = r.batch(b, b.Attributes.Transactional() && r.open[b.ProducerID])
		default:
			err = r.batch(one, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin notes the aborted transactions that have begun at an offset.
func (r *reading) begin(offset int64) {
	for len(r.aborted) > 0 && r.aborted[0].FirstOffset <= offset {
		if r.open == nil {
			r.open = map[int64]bool{}
		}
		r.open[r.aborted[0].ProducerID] = true
		r.aborted = r.aborted[1:]
	}
}

// control passes over the markers of transactions: they are no messages.
func (r *reading) control(b *protocol.ControlBatch) error {
	r.begin(b.BaseOffset)
	for {
		record, err := b.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.out.next = max(r.out.next, record.Offset+1)
		if marker, err := protocol.ReadControlRecord(record); err == nil && marker.Type == abortMarker {
			delete(r.open, b.ProducerID)
		}
	}
}

// batch takes the records of a batch. The first one may begin before the offset that was
// asked for.
func (r *reading) batch(records protocol.RecordReader, aborted bool) error {
	for {
		record, err := records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		m, err := messageOf(record)
		if err != nil {
			return err
		}
		if record.Offset < r.from {
			continue
		}
		r.out.next = max(r.out.next, record.Offset+1)
		if aborted {
			continue
		}
		m.Topic, m.Partition = r.topic, r.partition
		r.out.messages = append(r.out.messages, m)
	}
}

// messageOf copies a record, which is valid until the next is read.
func messageOf(record *protocol.Record) (inbox.Message, error) {
	m := inbox.Message{Offset: record.Offset, Time: record.Time}
	var err error
	if m.Key, err = bytesOf(record.Key); err != nil {
		return m, err
	}
	if m.Value, err = bytesOf(record.Value); err != nil {
		return m, err
	}
	if len(record.Headers) > 0 {
		m.Headers = make([]inbox.Header, len(record.Headers))
	}
	for i, h := range record.Headers {
		m.Headers[i] = inbox.Header{Name: h.Key, Value: h.Value}
	}
	m.ID, _ = m.Header("id")
	return m, nil
}

// bytesOf returns nil for a null and never for an empty value.
func bytesOf(b protocol.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	defer b.Close()
	all, err := protocol.ReadAll(b)
	if all == nil {
		all = []byte{}
	}
	return all, err
}

// bounds returns the first offset of a partition and the one after its last.
func bounds(ctx context.Context, client *kafka.Client, topic string, partition int) (first, end int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	answer, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: {kafka.FirstOffsetOf(partition), kafka.LastOffsetOf(partition)},
	}})
	if err != nil {
		return 0, 0, err
	}
	for _, p := range answer.Topics[topic] {
		if p.Partition == partition {
			return p.FirstOffset, p.LastOffset, p.Error
		}
	}
	return 0, 0, fmt.Errorf("the answer has no partition %d of %s", partition, topic)
}
