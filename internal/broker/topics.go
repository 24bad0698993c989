package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
)

// TopicSpec is how a topic is created.
type TopicSpec struct {
	// Partitions is the partition count; 0 takes the broker's default.
	Partitions int
	// ReplicationFactor is the number of replicas; 0 takes the broker's default.
	ReplicationFactor int
	// Config holds topic settings by their Kafka names.
	Config map[string]string
}

// TopicSettings are the effective settings of a topic that decide how safe an
// acknowledgement is and how large a batch may be.
type TopicSettings struct {
	// ReplicationFactor is the number of replicas of the topic's first partition.
	ReplicationFactor int
	// MinInsyncReplicas is how many replicas must have a batch before it is
	// acknowledged. What the broker's own file says is not always in force, so the
	// effective value is what counts.
	MinInsyncReplicas int
	// MaxMessageBytes is the largest batch, after compression, that is accepted.
	MaxMessageBytes int
}

const (
	minInsyncReplicas = "min.insync.replicas"
	maxMessageBytes   = "max.message.bytes"
	resourceTopic     = 2 // ConfigResource.Type.TOPIC
)

// CreateTopic creates a topic; that it exists already is no error. With three or
// more replicas it sets min.insync.replicas to 2 on the topic unless spec.Config
// says otherwise, since the brokers' default may let one replica acknowledge.
func (b *Broker) CreateTopic(ctx context.Context, name string, spec TopicSpec) error {
	op := "create topic " + name
	b.follow(name)
	config := maps.Clone(spec.Config)
	if _, set := config[minInsyncReplicas]; !set && spec.ReplicationFactor >= 3 {
		if config == nil {
			config = make(map[string]string, 1)
		}
		config[minInsyncReplicas] = "2"
	}
	topic := createtopics.RequestTopic{Name: name, NumPartitions: -1, ReplicationFactor: -1}
	if spec.Partitions > 0 {
		topic.NumPartitions = int32(spec.Partitions)
	}
	if spec.ReplicationFactor > 0 {
		topic.ReplicationFactor = int16(spec.ReplicationFactor)
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		topic.Configs = append(topic.Configs, createtopics.RequestConfig{Name: key, Value: config[key]})
	}
	r, err := b.roundTrip(ctx, &createtopics.Request{
		Topics:    []createtopics.RequestTopic{topic},
		TimeoutMs: int32(b.cfg.RequestTimeout.Milliseconds() / 2),
	})
	if err != nil {
		return b.fail(op, err)
	}
	res, ok := r.(*createtopics.Response)
	if !ok || len(res.Topics) != 1 {
		return b.fail(op, fmt.Errorf("unexpected answer %T", r))
	}
	switch code := kafka.Error(res.Topics[0].ErrorCode); {
	case code == 0, code == kafka.TopicAlreadyExists:
		return nil
	case res.Topics[0].ErrorMessage != "":
		return b.fail(op, fmt.Errorf("%w: %s", code, res.Topics[0].ErrorMessage))
	default:
		return b.fail(op, code)
	}
}

// TopicSettings reads the effective settings of a topic. It needs the permission
// to describe the topic's configuration, which publishing does not.
func (b *Broker) TopicSettings(ctx context.Context, topic string) (TopicSettings, error) {
	op := "read the settings of topic " + topic
	var out TopicSettings
	t, err := b.topicMetadata(ctx, topic)
	if err != nil {
		return out, b.fail(op, err)
	}
	out.ReplicationFactor = len(t.Partitions[0].ReplicaNodes)
	r, err := b.roundTrip(ctx, &describeconfigs.Request{Resources: []describeconfigs.RequestResource{{
		ResourceType: resourceTopic,
		ResourceName: topic,
		ConfigNames:  []string{minInsyncReplicas, maxMessageBytes},
	}}})
	if err != nil {
		return out, b.fail(op, err)
	}
	res, ok := r.(*describeconfigs.Response)
	if !ok || len(res.Resources) != 1 {
		return out, b.fail(op, fmt.Errorf("unexpected answer %T", r))
	}
	switch code := kafka.Error(res.Resources[0].ErrorCode); {
	case code == kafka.UnknownTopicOrPartition:
		return out, b.fail(op, ErrUnknownTopic)
	case code != 0:
		return out, b.fail(op, code)
	}
	for _, e := range res.Resources[0].ConfigEntries {
		n, err := strconv.Atoi(e.ConfigValue)
		if err != nil {
			continue
		}
		switch e.ConfigName {
		case minInsyncReplicas:
			out.MinInsyncReplicas = n
		case maxMessageBytes:
			out.MaxMessageBytes = n
		}
	}
	return out, nil
}
