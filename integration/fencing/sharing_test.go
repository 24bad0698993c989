package fencing_test

import (
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Two relays of different slots with one id write to one topic: the first is told what is wrong, nothing of either is
// lost, and it goes on by itself when the second has ended.
func TestSecondRelayWithTheSameID(t *testing.T) {
	t.Parallel()
	s, other := newSite(t), newSite(t)
	topic := s.CreateTopic("order", 1)
	first := s.start("", nil)
	first.is("leader")
	s.insert(3)
	s.Consume(topic, 3, patience)

	other.rows = 100
	second := other.start("", testenv.Settings{"kafka.transactional_id": s.id, "routing.topic": s.Prefix + "{aggregatetype}"})
	second.is("leader")
	other.insert(3)
	s.Consume(topic, 6, patience)
	s.insert(3)
	first.waitFor("/readyz", "another process uses kafka.transactional_id \""+s.id+"\"")
	other.Stop(second.Relay)
	s.want(topic, slices.Concat(scene.Counted(1, 3), scene.Counted(101, 103), scene.Counted(4, 6))...)
	first.is("leader")
}

// The right to use the id is missing: the relay says which, keeps its rows, and goes on once it is given.
func TestIDNotAllowed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	topic := s.CreateTopic("order", 1)
	s.GrantID("somebody", s.id) // A rule for one keeps out whom no rule names.
	r := s.start("", testenv.Settings{
		"kafka.brokers":        shared.Kafka.AddrsOf(localstack.SASLPlaintext),
		"kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.username": user, "kafka.sasl.password": password,
	})
	r.waitFor("/readyz", "it needs an ACL for Write on that TransactionalId")
	s.insert(3)
	s.GrantID(user, s.id)
	s.want(topic, scene.Counted(1, 3)...)
	r.is("leader")
}
