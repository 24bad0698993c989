package publishtest

import (
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A permission that is withdrawn is nobody's row's fault: the lane says so, keeps its rows and goes on once it is given
// back. A topic that the user was never allowed to see is no missing topic: it waits the same way. Other topics go on.
func TestPermissionWithdrawn(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	order, invoice, secret := s.CreateTopic("order", 1), s.CreateTopic("invoice", 1), s.CreateTopic("secret", 1)
	s.grant(order)
	s.grant(invoice)
	r := s.start(testenv.Settings{
		"kafka.brokers":        shared.kafka.AddrsOf(localstack.SASLPlaintext),
		"kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.username": user, "kafka.sasl.password": password,
	})
	s.settled(s.insert("order", "k", "1"))

	s.revoke(order)
	within := s.insert("order", "k", "2", "3")
	s.insert("secret", "k", "1")
	reason(t, r, order+"[0] is halted", "Topic Authorization Failed",
		"1 rows wait for topic "+secret, "the user lacks a permission on the topic")
	s.insert("order", "k", "4")
	s.insert("invoice", "k", "1")
	s.Consume(invoice, 1, patience)
	s.held(within)
	if n := s.count(order); n != 1 {
		t.Errorf("%d records on the topic that may not be written, want 1", n)
	}

	s.grant(order)
	s.grant(secret)
	s.Consume(secret, 1, patience)
	if got := values(s.Consume(order, 4, patience)); !slices.Equal(got, counted(1, 4)) {
		t.Errorf("got %q, want 1 to 4", got)
	}
	r.WaitReady(patience)
	s.settled(within)
	s.stop(r)
}
