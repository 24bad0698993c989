package publishtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A permission that is withdrawn is nobody's row's fault: the lane says so, keeps its rows and goes on once it is given
// back. A topic that the user was never allowed to see is no missing topic: it waits the same way. Other topics go on.
func TestPermissionWithdrawn(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	order, invoice, secret := s.CreateTopic("order", 1), s.CreateTopic("invoice", 1), s.CreateTopic("secret", 1)
	s.Grant(user, order, kmsg.ACLOperationWrite)
	s.Grant(user, invoice, kmsg.ACLOperationWrite)
	r := s.Start(testenv.Settings{
		"kafka.brokers":        shared.Kafka.AddrsOf(localstack.SASLPlaintext),
		"kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.username": user, "kafka.sasl.password": password,
	})
	s.Settled(s.Insert("order", "k", "1"))

	withdraw(t, s, order)
	within := s.Insert("order", "k", "2", "3")
	s.Insert("secret", "k", "1")
	scene.Reason(t, r, order+"[0] is halted", "Topic Authorization Failed",
		"1 rows wait for topic "+secret, "the user lacks a permission on the topic")
	s.Insert("order", "k", "4")
	s.Insert("invoice", "k", "1")
	s.Consume(invoice, 1, patience)
	s.Held(within)
	if n := s.Count(order); n != 1 {
		t.Errorf("%d records on the topic that may not be written, want 1", n)
	}

	s.Grant(user, order, kmsg.ACLOperationWrite)
	s.Grant(user, secret, kmsg.ACLOperationWrite)
	s.Consume(secret, 1, patience)
	if got := scene.Values(s.Consume(order, 4, patience)); !slices.Equal(got, scene.Counted(1, 4)) {
		t.Errorf("got %q, want 1 to 4", got)
	}
	r.WaitReady(patience)
	s.Settled(within)
	s.Stop(r)
}

// withdraw takes the permission to write from the user, and waits until the broker knows: the answer to the request comes
// from the controller.
func withdraw(t *testing.T, s *scene.Scene, topic string) {
	t.Helper()
	s.Revoke(user, topic, kmsg.ACLOperationWrite)
	client, err := kgo.NewClient(kgo.SeedBrokers(shared.Kafka.AddrsOf(localstack.SASLPlaintext)...),
		kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	testenv.Until(t, patience, func(ctx context.Context) error {
		request := kmsg.NewPtrMetadataRequest()
		name := kmsg.NewMetadataRequestTopic()
		name.Topic = new(topic)
		request.Topics, request.IncludeTopicAuthorizedOperations = append(request.Topics, name), true
		response, err := request.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if t := response.Topics[0]; t.ErrorCode == 0 && t.AuthorizedOperations&(1<<kmsg.ACLOperationWrite) != 0 {
			return errors.New("the broker still lets the user write")
		}
		return nil
	})
}
