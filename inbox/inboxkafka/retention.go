package inboxkafka

import (
	"context"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/inbox"
)

const retentionSetting = "retention.ms"

// warnOfRetention compares how long messages are remembered with how long their topics
// keep them: one that is read again after it was forgotten has its effect again. Whoever
// may not read the settings is not warned.
func warnOfRetention(ctx context.Context, cfg *Config, client *kafka.Client, p *inbox.Processor, topics []string) {
	if p.Retention() < 0 || len(topics) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	request := &kafka.DescribeConfigsRequest{}
	for _, topic := range topics {
		request.Resources = append(request.Resources, kafka.DescribeConfigRequestResource{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{retentionSetting},
		})
	}
	answer, err := client.DescribeConfigs(ctx, request)
	if err != nil {
		return
	}
	for _, topic := range answer.Resources {
		for _, entry := range topic.ConfigEntries {
			ms, err := strconv.ParseInt(entry.ConfigValue, 10, 64)
			if entry.ConfigName != retentionSetting || err != nil {
				continue
			}
			kept := time.Duration(min(ms, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond
			if ms < 0 || kept > p.Retention() {
				cfg.Logger.Warn("the topic keeps records for longer than the inbox remembers them: one that is read again later has its effect again",
					"consumer", p.Consumer(), "topic", topic.ResourceName, retentionSetting, ms, "inbox_retention", p.Retention())
			}
		}
	}
}
