package fencing_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A relay whose id the coordinator has forgotten fences nobody. It says so, gives an earlier one the time that a request
// may take, and then goes on as always.
func TestIDHasExpired(t *testing.T) {
	t.Parallel()
	testenv.NeedJava(t)
	kafka, err := localstack.StartKafka(t.Context(), localstack.KafkaConfig{Properties: map[string]string{
		"transactional.id.expiration.ms":                             "1000",
		"transaction.remove.expired.transaction.cleanup.interval.ms": "200",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kafka.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newSiteOn(t, kafka)
	topic := s.CreateTopic("order", 1)
	old := s.start("", nil)
	old.is("leader")
	s.insert(3)
	s.Consume(topic, 3, patience)
	old.Kill()
	s.insert(3)
	s.waitForgotten()

	const warning = "knew nothing of kafka.transactional_id"
	next := s.start("", nil)
	next.WaitOutput(warning, patience)
	warned := time.Now()
	s.want(topic, scene.Counted(1, 6)...)
	if waited := time.Since(warned); waited < 8*time.Second {
		t.Errorf("rows came %s after the warning, want the time-out of a request", waited)
	}
	next.is("leader")
}

// waitForgotten waits until the coordinator does not know the site's id.
func (s *site) waitForgotten() {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	testenv.Until(s.t, patience, func(ctx context.Context) error {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = []string{s.id}
		res, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		const notFound = 105
		if code := res.TransactionStates[0].ErrorCode; code != notFound {
			return fmt.Errorf("the coordinator answers with code %d", code)
		}
		return nil
	})
}
