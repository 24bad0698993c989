package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
)

// Timestamps that ask for a bound instead of a time.
const (
	latest   = -1
	earliest = -2
)

// Offsets are the bounds of what a partition holds.
type Offsets struct {
	// First is the log start offset: what came before it has been deleted.
	First int64
	// End is the high watermark: the offset after the last record that all in-sync
	// replicas have.
	End int64
}

// Offsets asks a partition's leader for the bounds of the partition. It needs the
// permission to describe the topic.
func (b *Broker) Offsets(ctx context.Context, topic string, partition int) (Offsets, error) {
	op := func() string { return fmt.Sprintf("read the offsets of %s[%d]", topic, partition) }
	b.follow(topic)
	// In this order, so that First is never beyond End.
	first, err := b.offset(ctx, topic, partition, earliest)
	if err != nil {
		return Offsets{}, b.fail(op(), err)
	}
	end, err := b.offset(ctx, topic, partition, latest)
	if err != nil {
		return Offsets{}, b.fail(op(), err)
	}
	return Offsets{First: first, End: end}, nil
}

func (b *Broker) offset(ctx context.Context, topic string, partition int, at int64) (int64, error) {
	r, err := b.roundTrip(ctx, &offsetsRequest{
		ReplicaID: -1,
		Topics: []listoffsets.RequestTopic{{
			Topic: topic,
			Partitions: []listoffsets.RequestPartition{{
				Partition: int32(partition), CurrentLeaderEpoch: -1, Timestamp: at,
			}},
		}},
	})
	if err != nil {
		return 0, err
	}
	res, ok := r.(*listoffsets.Response)
	if !ok || len(res.Topics) != 1 || len(res.Topics[0].Partitions) != 1 {
		return 0, errors.New("the answer does not name the partition")
	}
	p := &res.Topics[0].Partitions[0]
	switch {
	case p.ErrorCode != 0:
		return 0, kafka.Error(p.ErrorCode)
	case p.Offset < 0:
		return 0, fmt.Errorf("the broker answered with offset %d", p.Offset)
	}
	return p.Offset, nil
}

// offsetsRequest is kafka-go's request without its Split method, which replaces an
// error of one part by the code -1, and with a Broker method that knows a partition
// without leader.
type offsetsRequest listoffsets.Request

// ApiKey implements protocol.Message.
//
//nolint:revive // kafka-go's interface spells the name.
func (r *offsetsRequest) ApiKey() protocol.ApiKey { return protocol.ListOffsets }

// Broker implements protocol.BrokerMessage: the partition's leader.
func (r *offsetsRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	return leader(cluster, r.Topics[0].Topic, r.Topics[0].Partitions[0].Partition)
}

// leader returns the broker that leads a partition.
func leader(cluster protocol.Cluster, topic string, partition int32) (protocol.Broker, error) {
	t, ok := cluster.Topics[topic]
	if !ok {
		return protocol.Broker{}, protocol.NewErrNoTopic(topic)
	}
	p, ok := t.Partitions[partition]
	if !ok {
		return protocol.Broker{}, protocol.NewErrNoPartition(topic, partition)
	}
	l, ok := cluster.Brokers[p.Leader]
	if !ok {
		return protocol.Broker{}, protocol.NewErrNoLeader(topic, partition)
	}
	return l, nil
}
