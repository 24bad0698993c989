// Package kafkaadmin does to a Kafka cluster, within a test, what its operator does: changes topics, permissions, quotas
// and leaders. What fails, fails the test.
package kafkaadmin

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// patience is how long a cluster may take to do as it was told.
const patience = 40 * time.Second

// Admin asks a cluster. It belongs to one test, whose cleanup may use it too.
type Admin struct {
	t      testing.TB
	client *kgo.Client
}

// New opens a client that is closed when the test ends.
func New(t testing.TB, brokers []string, opts ...kgo.Opt) *Admin {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(50*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &Admin{t: t, client: client}
}

// context outlives the test's body, for its cleanup.
func (a *Admin) context() context.Context { return context.WithoutCancel(a.t.Context()) }

// try fails the test for an error, or for an error code in an answer.
func (a *Admin) try(what string, err error, code int16, message *string) {
	a.t.Helper()
	if err == nil {
		err = kerr.ErrorForCode(code)
	}
	if err != nil && message != nil {
		err = fmt.Errorf("%w: %s", err, *message)
	}
	if err != nil {
		a.t.Fatalf("%s: %v", what, err)
	}
}

// Layout reads a topic's partitions; none means that it does not exist.
func (a *Admin) Layout(ctx context.Context, topic string) ([]kmsg.MetadataResponseTopicPartition, error) {
	request := kmsg.NewPtrMetadataRequest()
	name := kmsg.NewMetadataRequestTopic()
	name.Topic = new(topic)
	request.Topics, request.AllowAutoTopicCreation = append(request.Topics, name), false
	response, err := request.RequestWith(ctx, a.client)
	if err != nil {
		return nil, err
	}
	err = kerr.ErrorForCode(response.Topics[0].ErrorCode)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		err = nil
	}
	return response.Topics[0].Partitions, err
}

// Partitions is the topic's partition count, 0 when it does not exist.
func (a *Admin) Partitions(topic string) int {
	a.t.Helper()
	all, err := a.Layout(a.context(), topic)
	a.try("read the layout of "+topic, err, 0, nil)
	return len(all)
}

// InSync waits until every partition of the topic has a leader and n replicas in sync.
func (a *Admin) InSync(topic string, n int) {
	a.t.Helper()
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		all, err := a.Layout(ctx, topic)
		for _, p := range all {
			if len(p.ISR) != n || p.Leader < 0 {
				err = fmt.Errorf("partition %d has %d replicas in sync and leader %d", p.Partition, len(p.ISR), p.Leader)
			}
		}
		return err
	})
}

// Leader is the node id of a partition's leader, -1 when it has none.
func (a *Admin) Leader(topic string, partition int) int {
	a.t.Helper()
	all, err := a.Layout(a.context(), topic)
	a.try("read the layout of "+topic, err, 0, nil)
	for _, p := range all {
		if int(p.Partition) == partition {
			return int(p.Leader)
		}
	}
	return -1
}

// Ends are the offsets after the last record of each partition.
func (a *Admin) Ends(topic string) []int64 { a.t.Helper(); return a.offsets(topic, -1) }

// Starts are the offsets of the first record of each partition.
func (a *Admin) Starts(topic string) []int64 { a.t.Helper(); return a.offsets(topic, -2) }

// offsets asks until every partition answers: its leader may be moving, or not yet known to all.
func (a *Admin) offsets(topic string, timestamp int64) (offsets []int64) {
	a.t.Helper()
	testenv.Until(a.t, patience, func(ctx context.Context) (err error) {
		offsets, err = a.list(ctx, topic, timestamp)
		return err
	})
	return offsets
}

func (a *Admin) list(ctx context.Context, topic string, timestamp int64) ([]int64, error) {
	all, err := a.Layout(ctx, topic)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	request := kmsg.NewPtrListOffsetsRequest()
	of := kmsg.NewListOffsetsRequestTopic()
	of.Topic = topic
	for i := range all {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = int32(i), timestamp
		of.Partitions = append(of.Partitions, partition)
	}
	request.Topics = append(request.Topics, of)
	response, err := request.RequestWith(ctx, a.client)
	if err != nil {
		return nil, err
	}
	offsets := make([]int64, len(all))
	for _, p := range response.Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return nil, fmt.Errorf("read the offsets of %s[%d]: %w", topic, p.Partition, err)
		}
		offsets[p.Partition] = p.Offset
	}
	return offsets, nil
}

// Count is the number of records of a topic of which none was deleted.
func (a *Admin) Count(topic string) (n int) {
	a.t.Helper()
	for _, end := range a.Ends(topic) {
		n += int(end)
	}
	return n
}

// Producers is the number of producers that the leaders of a topic remember.
func (a *Admin) Producers(topic string) (n int) {
	a.t.Helper()
	request := kmsg.NewPtrDescribeProducersRequest()
	of := kmsg.NewDescribeProducersRequestTopic()
	of.Topic = topic
	for i := range a.Partitions(topic) {
		of.Partitions = append(of.Partitions, int32(i))
	}
	request.Topics = append(request.Topics, of)
	for _, shard := range a.client.RequestSharded(a.context(), request) {
		a.try("ask for the producers of "+topic, shard.Err, 0, nil)
		for _, topic := range shard.Resp.(*kmsg.DescribeProducersResponse).Topics {
			for _, p := range topic.Partitions {
				a.try("ask for producers", nil, p.ErrorCode, p.ErrorMessage)
				n += len(p.ActiveProducers)
			}
		}
	}
	return n
}
