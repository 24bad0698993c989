package inboxkafkatests

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// deleteRecords deletes what lies before an offset of partition 0, as retention does.
func deleteRecords(ctx context.Context, client *kgo.Client, topic string, before int64) error {
	request := kmsg.NewPtrDeleteRecordsRequest()
	of := kmsg.NewDeleteRecordsRequestTopic()
	of.Topic = topic
	partition := kmsg.NewDeleteRecordsRequestTopicPartition()
	partition.Offset = before
	of.Partitions = append(of.Partitions, partition)
	request.Topics = append(request.Topics, of)
	for _, shard := range client.RequestSharded(ctx, request) {
		if shard.Err != nil {
			return shard.Err
		}
		for _, t := range shard.Resp.(*kmsg.DeleteRecordsResponse).Topics { //nolint:forcetypeassert // the answer to that request
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return fmt.Errorf("delete records of %s: %w", topic, err)
				}
			}
		}
	}
	return nil
}
