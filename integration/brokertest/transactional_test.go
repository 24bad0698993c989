package brokertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/kafkaadmin"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// nobody is the producer that a process knows before it has asked.
var nobody = broker.Producer{ID: -1, Epoch: -1}

// initTransactional asks until the coordinator is there: the first request of a cluster has its topic made.
func initTransactional(t *testing.T, b *broker.Broker, id string, known broker.Producer) (p broker.Producer) {
	t.Helper()
	testenv.Until(t, soon, func(ctx context.Context) (err error) {
		p, err = b.InitTransactional(ctx, id, known)
		switch broker.Code(err) {
		case 14, 15, 16, 51:
			return err
		}
		if err != nil {
			t.Fatal(err)
		}
		return nil
	})
	return p
}

// TestInitTransactional: each call raises the epoch; one that names a producer is refused once another has come.
func TestInitTransactional(t *testing.T) {
	b := openBroker(t, broker.Config{Brokers: kafka(t).kafka.Addrs()})
	id := t.Name() + rand.Text()
	first := initTransactional(t, b, id, nobody)
	if first.Epoch != 0 || first.ID < 0 {
		t.Fatalf("an unknown id gives %+v, want epoch 0", first)
	}
	second := initTransactional(t, b, id, nobody)
	if want := (broker.Producer{ID: first.ID, Epoch: 1}); second != want {
		t.Fatalf("the next process gets %+v, want %+v", second, want)
	}
	third := initTransactional(t, b, id, second)
	if want := (broker.Producer{ID: first.ID, Epoch: 2}); third != want {
		t.Errorf("raising it gives %+v, want %+v", third, want)
	}
	if again, err := b.InitTransactional(t.Context(), id, second); err != nil || again != third {
		t.Errorf("the same request again gives %+v, %v; want %+v", again, err, third)
	}
	_, err := b.InitTransactional(t.Context(), id, first)
	if code := broker.Code(err); code != 90 && code != 47 {
		t.Errorf("the process deposed is told %v, want code 90 or 47", err)
	}
	other := initTransactional(t, b, id+"2", third)
	if other.Epoch != 0 || other.ID == third.ID {
		t.Errorf("an id that the coordinator has forgotten gives %+v, want a new one with epoch 0", other)
	}
}

// TestInitTransactionalDenied: code 53, with the permission that is missing; with it the answer is a producer.
func TestInitTransactionalDenied(t *testing.T) {
	k := kafka(t)
	id := t.Name() + rand.Text()
	b := openBroker(t, broker.Config{
		Brokers: k.kafka.AddrsOf(localstack.SASLPlaintext),
		SASL:    broker.SASLConfig{Mechanism: "PLAIN", Username: user, Password: password},
	})
	admin := kafkaadmin.New(t, k.kafka.Addrs())
	admin.GrantID("somebody", id)
	_, err := b.InitTransactional(t.Context(), id, nobody)
	if broker.Code(err) != 53 || !strings.Contains(err.Error(), "kafka.transactional_id: it needs an ACL for Write") {
		t.Errorf("InitTransactional = %v, want code 53 and a hint", err)
	}
	admin.GrantID(user, id)
	testenv.Until(t, soon, func(ctx context.Context) error {
		p, err := b.InitTransactional(ctx, id, nobody)
		if err == nil && p.ID < 0 {
			err = fmt.Errorf("producer %+v", p)
		}
		return err
	})
}
