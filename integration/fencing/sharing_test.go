package fencing_test

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Two relays of different slots with one id write to one topic: the first is told what is wrong, nothing of either is
// lost, and it goes on by itself when the second has ended.
func TestSecondRelayWithTheSameID(t *testing.T) {
	t.Parallel()
	s, other := newScene(t), newScene(t)
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
	testenv.Until(t, patience, first.says("another process uses kafka.transactional_id \""+s.id+"\""))
	if code := second.Stop(patience); code != 0 {
		t.Errorf("the second relay exits with %d", code)
	}
	want := slices.Concat(numbers(1, 3), numbers(101, 103), numbers(4, 6))
	if got := s.values(topic, len(want)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	first.is("leader")
}

// The right to use the id is missing: the relay says which, keeps its rows, and goes on once it is given.
func TestIDNotAllowed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	topic := s.CreateTopic("order", 1)
	s.allow("somebody")
	r := s.start("", plain())
	testenv.Until(t, patience, r.says("it needs an ACL for Write on that TransactionalId"))
	s.insert(3)
	s.allow(user)
	if got := s.values(topic, 3); !slices.Equal(got, numbers(1, 3)) {
		t.Errorf("got %q, want 1 to 3", got)
	}
	r.is("leader")
}

// allow lets a user write to the scene's id, and by that nobody else whom no rule names.
func (s *scene) allow(name string) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	rule := kmsg.NewCreateACLsRequestCreation()
	rule.ResourceType, rule.ResourceName = kmsg.ACLResourceTypeTransactionalId, s.id
	rule.ResourcePatternType, rule.PermissionType = kmsg.ACLResourcePatternTypeLiteral, kmsg.ACLPermissionTypeAllow
	rule.Principal, rule.Host, rule.Operation = "User:"+name, "*", kmsg.ACLOperationWrite
	req := kmsg.NewPtrCreateACLsRequest()
	req.Creations = append(req.Creations, rule)
	res, err := req.RequestWith(s.t.Context(), client)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := kerr.ErrorForCode(res.Results[0].ErrorCode); err != nil {
		s.t.Fatal(err)
	}
}
