package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Brokers forget a producer that is idle for producer.id.expiration.ms. The next batch is taken, whatever its number.
func TestProducerIDExpires(t *testing.T) {
	s := scene.New(t, brokers(t).addrs())
	topic := s.CreateTopic("order", 1, safe...)
	r := s.Start(nil)
	s.SetBrokers("producer.id.expiration.ms", "1000")
	defer s.SetBrokers("producer.id.expiration.ms", "86400000")
	const rounds = 3
	for round := range rounds {
		s.Settled(s.Insert("order", "k", scene.Counted(round*10+1, round*10+10)...))
		testenv.Until(t, patience, func(context.Context) error {
			if n := s.Producers(topic); n > 0 {
				return fmt.Errorf("%d producers are remembered", n)
			}
			return nil
		})
	}
	s.Settled(s.Insert("order", "k", "31"))
	if got := scene.Values(s.Consume(topic, 31, patience)); !slices.Equal(got, scene.Counted(1, 31)) {
		t.Errorf("got %q, want each row once", got)
	}
	if n := scene.Metric(t, r, "cdc_relay_publish_failures_total"); n > 0 {
		t.Errorf("%v attempts failed, want none", n)
	}
	s.Stop(r)
}

// An unclean election makes a replica the leader that lacks acknowledged records, and refuses the next batch with code
// 45. What is not confirmed is published again, with an alarm: confirmed records may be gone.
func TestUncleanElection(t *testing.T) {
	s := scene.New(t, brokers(t).addrs())
	topic := s.Topic("order")
	s.Create(topic, [][]int32{{1, 2}}, "min.insync.replicas", "1", "unclean.leader.election.enable", "true")
	r := s.Start(nil)
	s.Settled(s.Insert("order", "k", scene.Counted(1, 10)...))
	unconfirmed := holdBack(s)
	s.Insert("order", "k", scene.Counted(11, 20)...)
	s.Consume(topic, 20, patience)

	leader, follower := shared.Kafka.Brokers()[0], shared.Kafka.Brokers()[1]
	if err := follower.Kill(); err != nil {
		t.Fatal(err)
	}
	s.InSync(topic, 1)
	s.Insert("order", "k", scene.Counted(21, 30)...)
	s.Consume(topic, 30, patience)
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	testenv.Until(t, patience, func(context.Context) error {
		if at := s.Leader(topic, 0); at == leader.ID() {
			return fmt.Errorf("broker %d leads", at)
		}
		return nil
	})
	if err := follower.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.InSync(topic, 1)
	if n := s.Count(topic); n != 20 {
		t.Fatalf("%d records survive, want 20", n)
	}
	s.Insert("order", "k", scene.Counted(31, 40)...)
	judgeNewHistory(t, s, r, topic, scene.Counted(11, 40))
	if err := leader.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.InSync(topic, 2)
	letGo(t, s, r, unconfirmed)
}

// A broker that says that it does not know the producer, or its numbers, gets the rows in a new epoch, once the topic has
// told which of them are there. Kafka 4.3.1 sends 45 in few cases and 59 in none, so they are injected.
func TestNumbersRefused(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.DuplicateSequenceNumber, kerr.UnknownProducerID} {
		for _, appended := range []bool{false, true} {
			for _, fence := range []string{"", "relay"} {
				t.Run(fmt.Sprintf("%d appended %t fence %t", code.Code, appended, fence != ""), func(t *testing.T) {
					t.Parallel()
					numbersRefused(t, code, appended, fence)
				})
			}
		}
	}
}

func numbersRefused(t *testing.T, code *kerr.Error, appended bool, fence string) {
	fake, err := localstack.StartFake(1)
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	s := scene.New(t, fake.Addrs())
	topic := s.CreateTopic("order", 1)
	if fence != "" {
		s.Fence(fence) // So that the relay is not the first to use the id, and has somebody to fence.
	}
	r := s.Start(testenv.Settings{"kafka.transactional_id": fence})
	s.Settled(s.Insert("order", "k", scene.Counted(1, 10)...))
	produce := kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic}
	if appended {
		first := produce
		first.Err = kerr.NotEnoughReplicasAfterAppend
		fake.Cluster.Fault(first)
	}
	produce.Err = code
	refusal := fake.Cluster.Fault(produce)
	within := s.Insert("order", "k", scene.Counted(11, 30)...)
	s.SettledIn(soon, within)
	s.Settled(s.Insert("order", "k", "31"))
	if refusal.Hits() != 1 {
		t.Errorf("%d refusals, want one", refusal.Hits())
	}
	if got := scene.Values(s.Consume(topic, s.Count(topic), patience)); !slices.Equal(got, scene.Counted(1, 31)) {
		t.Errorf("got %q, want each row once", got)
	}
	if n := scene.Metric(t, r, "cdc_relay_batches_given_up_total"); n != 1 {
		t.Errorf("%v batches were given up, want one", n)
	}
	if strings.Contains(r.Output(), `"level":"ERROR"`) {
		t.Error("what heals by itself is no error")
	}
	s.Stop(r)
}
