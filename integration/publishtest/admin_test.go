package publishtest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// admin does to a cluster what an operator does.
type admin struct {
	t      *testing.T
	client *kgo.Client
}

func newAdmin(t *testing.T, brokers []string) *admin {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &admin{t: t, client: client}
}

// try fails the test for an error, or for an error code in an answer.
func (a *admin) try(what string, err error, code int16, message *string) {
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

// layout reads a topic's partitions; none means that it does not exist.
func (a *admin) layout(ctx context.Context, topic string) ([]kmsg.MetadataResponseTopicPartition, error) {
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

// partitions is the topic's partition count, 0 when it does not exist.
func (a *admin) partitions(topic string) int {
	a.t.Helper()
	all, err := a.layout(a.t.Context(), topic)
	if err != nil {
		a.t.Fatal(err)
	}
	return len(all)
}

// inSync waits until every partition of the topic has n replicas in sync.
func (a *admin) inSync(topic string, n int) {
	a.t.Helper()
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		all, err := a.layout(ctx, topic)
		for _, p := range all {
			if len(p.ISR) != n {
				err = fmt.Errorf("partition %d has %d replicas in sync", p.Partition, len(p.ISR))
			}
		}
		return err
	})
}

// ends are the offsets after the last record of each partition.
func (a *admin) ends(topic string) []int64 {
	a.t.Helper()
	request := kmsg.NewPtrListOffsetsRequest()
	of := kmsg.NewListOffsetsRequestTopic()
	of.Topic = topic
	for i := range a.partitions(topic) {
		latest := kmsg.NewListOffsetsRequestTopicPartition()
		latest.Partition, latest.Timestamp = int32(i), -1
		of.Partitions = append(of.Partitions, latest)
	}
	request.Topics = append(request.Topics, of)
	response, err := request.RequestWith(a.t.Context(), a.client)
	if err != nil {
		a.t.Fatal(err)
	}
	ends := make([]int64, len(of.Partitions))
	for _, p := range response.Topics[0].Partitions {
		a.try("read the end of "+topic, nil, p.ErrorCode, nil)
		ends[p.Partition] = p.Offset
	}
	return ends
}

// count is the number of records of a topic of which none was deleted.
func (a *admin) count(topic string) (n int) {
	a.t.Helper()
	for _, end := range a.ends(topic) {
		n += int(end)
	}
	return n
}

// set changes a setting of a topic.
func (a *admin) set(topic, name, value string) {
	a.t.Helper()
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = name, new(value)
	resource.Configs = append(resource.Configs, config)
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(a.t.Context(), a.client)
	if err != nil {
		a.t.Fatal(err)
	}
	a.try("set "+name, nil, response.Resources[0].ErrorCode, response.Resources[0].ErrorMessage)
}

// settings reads the settings of a topic.
func (a *admin) settings(topic string) map[string]string {
	a.t.Helper()
	request := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(a.t.Context(), a.client)
	if err != nil {
		a.t.Fatal(err)
	}
	a.try("read settings", nil, response.Resources[0].ErrorCode, response.Resources[0].ErrorMessage)
	out := map[string]string{}
	for _, c := range response.Resources[0].Configs {
		if c.Value != nil {
			out[c.Name] = *c.Value
		}
	}
	return out
}

// grow gives the topic more partitions.
func (a *admin) grow(topic string, partitions int) {
	a.t.Helper()
	request := kmsg.NewPtrCreatePartitionsRequest()
	of := kmsg.NewCreatePartitionsRequestTopic()
	of.Topic, of.Count = topic, int32(partitions)
	request.Topics, request.TimeoutMillis = append(request.Topics, of), 10_000
	response, err := request.RequestWith(a.t.Context(), a.client)
	if err != nil {
		a.t.Fatal(err)
	}
	a.try("grow "+topic, nil, response.Topics[0].ErrorCode, response.Topics[0].ErrorMessage)
}

// drop deletes a topic and waits until it is gone.
func (a *admin) drop(topic string) {
	a.t.Helper()
	request := kmsg.NewPtrDeleteTopicsRequest()
	of := kmsg.NewDeleteTopicsRequestTopic()
	of.Topic = new(topic)
	request.Topics, request.TopicNames, request.TimeoutMillis = append(request.Topics, of), []string{topic}, 10_000
	response, err := request.RequestWith(a.t.Context(), a.client)
	if err != nil {
		a.t.Fatal(err)
	}
	a.try("delete "+topic, nil, response.Topics[0].ErrorCode, response.Topics[0].ErrorMessage)
	testenv.Until(a.t, patience, func(context.Context) error {
		if a.partitions(topic) > 0 {
			return errors.New("the topic is still there")
		}
		return nil
	})
}

// grant allows the user to write to a topic.
func (a *admin) grant(topic string) {
	a.t.Helper()
	request := kmsg.NewPtrCreateACLsRequest()
	acl := kmsg.NewCreateACLsRequestCreation()
	acl.ResourceType, acl.ResourceName, acl.ResourcePatternType = kmsg.ACLResourceTypeTopic, topic, kmsg.ACLResourcePatternTypeLiteral
	acl.Principal, acl.Host = "User:"+user, "*"
	acl.Operation, acl.PermissionType = kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeAllow
	request.Creations = append(request.Creations, acl)
	response, err := request.RequestWith(a.t.Context(), a.client)
	if err != nil {
		a.t.Fatal(err)
	}
	a.try("grant", nil, response.Results[0].ErrorCode, response.Results[0].ErrorMessage)
}

// revoke takes from the user what grant gave for the topic, and waits until the broker knows: the answer to the request
// comes from the controller.
func (a *admin) revoke(topic string) {
	a.t.Helper()
	request := kmsg.NewPtrDeleteACLsRequest()
	filter := kmsg.NewDeleteACLsRequestFilter()
	filter.ResourceType, filter.ResourceName = kmsg.ACLResourceTypeTopic, new(topic)
	filter.ResourcePatternType = kmsg.ACLResourcePatternTypeLiteral
	filter.Operation, filter.PermissionType = kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeAllow
	request.Filters = append(request.Filters, filter)
	response, err := request.RequestWith(a.t.Context(), a.client)
	if err != nil {
		a.t.Fatal(err)
	}
	a.try("revoke", nil, response.Results[0].ErrorCode, response.Results[0].ErrorMessage)
	if len(response.Results[0].MatchingACLs) == 0 {
		a.t.Fatal("nothing to revoke")
	}
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		if a.mayWrite(ctx, topic) {
			return errors.New("the broker still lets the user write")
		}
		return nil
	})
}

// mayWrite asks the broker, as the user, whether the user may write to a topic.
func (a *admin) mayWrite(ctx context.Context, topic string) bool {
	a.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(shared.kafka.AddrsOf(localstack.SASLPlaintext)...),
		kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	if err != nil {
		a.t.Fatal(err)
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	name := kmsg.NewMetadataRequestTopic()
	name.Topic = new(topic)
	request.Topics, request.IncludeTopicAuthorizedOperations = append(request.Topics, name), true
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		a.t.Fatal(err)
	}
	t := response.Topics[0]
	return t.ErrorCode == 0 && t.AuthorizedOperations&(1<<kmsg.ACLOperationWrite) != 0
}
