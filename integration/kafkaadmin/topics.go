package kafkaadmin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Create creates a topic whose partitions have their replicas on the named brokers, the preferred leader first. config
// are names, each followed by its value.
func (a *Admin) Create(topic string, replicas [][]int32, config ...string) {
	a.t.Helper()
	of := kmsg.NewCreateTopicsRequestTopic()
	of.Topic, of.NumPartitions, of.ReplicationFactor = topic, -1, -1
	for i, brokers := range replicas {
		assignment := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		assignment.Partition, assignment.Replicas = int32(i), brokers
		of.ReplicaAssignment = append(of.ReplicaAssignment, assignment)
	}
	for pair := range slices.Chunk(config, 2) {
		setting := kmsg.NewCreateTopicsRequestTopicConfig()
		setting.Name, setting.Value = pair[0], new(pair[1])
		of.Configs = append(of.Configs, setting)
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, of)
	response, err := request.RequestWith(a.context(), a.client)
	a.try("create "+topic, err, 0, nil)
	a.try("create "+topic, nil, response.Topics[0].ErrorCode, response.Topics[0].ErrorMessage)
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		if all, err := a.Layout(ctx, topic); err != nil || len(all) != len(replicas) {
			return fmt.Errorf("topic %s has %d partitions: %w", topic, len(all), err)
		}
		return nil
	})
}

// Grow gives the topic more partitions.
func (a *Admin) Grow(topic string, partitions int) {
	a.t.Helper()
	request := kmsg.NewPtrCreatePartitionsRequest()
	of := kmsg.NewCreatePartitionsRequestTopic()
	of.Topic, of.Count = topic, int32(partitions)
	request.Topics, request.TimeoutMillis = append(request.Topics, of), 10_000
	response, err := request.RequestWith(a.context(), a.client)
	a.try("grow "+topic, err, 0, nil)
	a.try("grow "+topic, nil, response.Topics[0].ErrorCode, response.Topics[0].ErrorMessage)
}

// Drop deletes a topic and waits until it is gone.
func (a *Admin) Drop(topic string) {
	a.t.Helper()
	request := kmsg.NewPtrDeleteTopicsRequest()
	of := kmsg.NewDeleteTopicsRequestTopic()
	of.Topic = new(topic)
	request.Topics, request.TopicNames, request.TimeoutMillis = append(request.Topics, of), []string{topic}, 10_000
	response, err := request.RequestWith(a.context(), a.client)
	a.try("delete "+topic, err, 0, nil)
	a.try("delete "+topic, nil, response.Topics[0].ErrorCode, response.Topics[0].ErrorMessage)
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		if all, err := a.Layout(ctx, topic); err != nil || len(all) > 0 {
			return errors.Join(err, errors.New("the topic is still there"))
		}
		return nil
	})
}

// DeleteRecords deletes the records of each partition below an offset; -1 is the end.
func (a *Admin) DeleteRecords(topic string, below []int64) {
	a.t.Helper()
	request := kmsg.NewPtrDeleteRecordsRequest()
	of := kmsg.NewDeleteRecordsRequestTopic()
	of.Topic = topic
	for i, offset := range below {
		partition := kmsg.NewDeleteRecordsRequestTopicPartition()
		partition.Partition, partition.Offset = int32(i), offset
		of.Partitions = append(of.Partitions, partition)
	}
	request.Topics, request.TimeoutMillis = append(request.Topics, of), 10_000
	response, err := request.RequestWith(a.context(), a.client)
	a.try("delete records of "+topic, err, 0, nil)
	for _, p := range response.Topics[0].Partitions {
		a.try("delete records of "+topic, nil, p.ErrorCode, nil)
	}
}

// Set changes a setting of a topic.
func (a *Admin) Set(topic, name, value string) {
	a.t.Helper()
	a.set(kmsg.ConfigResourceTypeTopic, topic, name, value)
}

// SetBrokers changes a setting of all brokers.
func (a *Admin) SetBrokers(name, value string) {
	a.t.Helper()
	a.set(kmsg.ConfigResourceTypeBroker, "", name, value)
}

func (a *Admin) set(kind kmsg.ConfigResourceType, resource, name, value string) {
	a.t.Helper()
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	of := kmsg.NewIncrementalAlterConfigsRequestResource()
	of.ResourceType, of.ResourceName = kind, resource
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = name, new(value)
	of.Configs = append(of.Configs, config)
	request.Resources = append(request.Resources, of)
	response, err := request.RequestWith(a.context(), a.client)
	a.try("set "+name, err, 0, nil)
	a.try("set "+name, nil, response.Resources[0].ErrorCode, response.Resources[0].ErrorMessage)
}

// TopicSettings reads the settings of a topic.
func (a *Admin) TopicSettings(topic string) map[string]string {
	a.t.Helper()
	request := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(a.context(), a.client)
	a.try("read settings", err, 0, nil)
	a.try("read settings", nil, response.Resources[0].ErrorCode, response.Resources[0].ErrorMessage)
	out := map[string]string{}
	for _, c := range response.Resources[0].Configs {
		if c.Value != nil {
			out[c.Name] = *c.Value
		}
	}
	return out
}

// MoveLeaders makes the next replica of each partition its leader, and waits until it is.
func (a *Admin) MoveLeaders(topic string) {
	a.t.Helper()
	all, err := a.Layout(a.context(), topic)
	a.try("read the layout of "+topic, err, 0, nil)
	reassign := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	of := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	of.Topic = topic
	elect := kmsg.NewPtrElectLeadersRequest()
	elected := kmsg.NewElectLeadersRequestTopic()
	elected.Topic = topic
	leaders := map[int32]int32{}
	for _, p := range all {
		partition := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
		partition.Partition, partition.Replicas = p.Partition, append(slices.Clone(p.Replicas[1:]), p.Replicas[0])
		of.Partitions = append(of.Partitions, partition)
		elected.Partitions = append(elected.Partitions, p.Partition)
		leaders[p.Partition] = partition.Replicas[0]
	}
	reassign.Topics, reassign.TimeoutMillis = append(reassign.Topics, of), 10_000
	response, err := reassign.RequestWith(a.context(), a.client)
	a.try("reorder the replicas of "+topic, err, 0, nil)
	a.try("reorder the replicas of "+topic, nil, response.ErrorCode, response.ErrorMessage)
	elect.Topics, elect.TimeoutMillis = append(elect.Topics, elected), 10_000
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		if _, err := elect.RequestWith(ctx, a.client); err != nil { // "No election needed" is in the answer.
			return err
		}
		all, err := a.Layout(ctx, topic)
		for _, p := range all {
			if p.Leader != leaders[p.Partition] {
				err = fmt.Errorf("partition %d is led by %d, want %d", p.Partition, p.Leader, leaders[p.Partition])
			}
		}
		return err
	})
}
