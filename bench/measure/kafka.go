package measure

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func topicOf(slot string) string { return slot + ".order" }

func (l *Lab) createTopic(ctx context.Context, name string) error {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, l.client)
	if err == nil {
		err = kerr.ErrorForCode(response.Topics[0].ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	return nil
}

func (l *Lab) deleteTopic(ctx context.Context, name string) error {
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = new(name)
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.Topics, request.TopicNames = append(request.Topics, topic), []string{name}
	response, err := request.RequestWith(ctx, l.client)
	if err == nil {
		err = kerr.ErrorForCode(response.Topics[0].ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	return nil
}

// recordsIn returns how many records a topic has.
func (l *Lab) recordsIn(ctx context.Context, name string) (int64, error) {
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = name
	for i := range int32(partitions) {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = i, -1 // the end
		topic.Partitions = append(topic.Partitions, partition)
	}
	request := kmsg.NewPtrListOffsetsRequest()
	request.Topics = append(request.Topics, topic)
	var sum int64
	for _, shard := range l.client.RequestSharded(ctx, request) {
		if shard.Err != nil {
			return 0, fmt.Errorf("read the end of topic %s: %w", name, shard.Err)
		}
		response, _ := shard.Resp.(*kmsg.ListOffsetsResponse)
		for _, t := range response.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return 0, fmt.Errorf("read the end of topic %s: %w", name, err)
				}
				sum += p.Offset
			}
		}
	}
	return sum, nil
}
