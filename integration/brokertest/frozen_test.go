package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestFrozenBroker: a broker that stops answering shows within ten seconds, idle or busy; rows go on within five
// seconds of its return, once each.
func TestFrozenBroker(t *testing.T) {
	t.Parallel()
	testenv.NeedJava(t)
	k, err := localstack.StartKafka(t.Context(), localstack.KafkaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	createTopic(t, k.Addrs(), "frozen", 2)
	p := startPublisher(t, publish.Config{}, openBroker(t, broker.Config{Brokers: k.Addrs()}))
	rows := 0
	put := func() {
		p.put("frozen", fmt.Appendf(nil, "key-%d", rows), fmt.Append(nil, rows))
		rows++
	}
	put()
	p.drain(10 * time.Second)
	// The third time lasts longer than a request, so that it is repeated on new connections.
	for i, hold := range []time.Duration{0, 0, 8 * time.Second} {
		if err := k.Brokers()[0].Pause(); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			put()
		}
		testenv.Until(t, 10*time.Second, func(context.Context) error {
			if len(p.Snapshot().Problems()) == 0 {
				return errors.New("no problem is shown")
			}
			return nil
		})
		timer := time.NewTimer(hold)
		<-timer.C
		if err := k.Brokers()[0].Resume(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		testenv.Until(t, 5*time.Second, func(context.Context) error {
			if problems := p.Snapshot().Problems(); len(problems) > 0 {
				return errors.New(strings.Join(problems, "; "))
			}
			if oldest, unsettled := p.Oldest(); unsettled {
				return fmt.Errorf("row %d is not settled", oldest)
			}
			return nil
		})
		t.Logf("well again %s after the broker", time.Since(start).Round(time.Millisecond))
	}
	put()
	p.drain(10 * time.Second)
	var got []string
	for _, r := range testenv.Consume(t, k.Addrs(), "frozen", rows, 10*time.Second) {
		got = append(got, string(r.Value))
	}
	slices.Sort(got)
	if want := []string{"0", "1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("records %v, want %v", got, want)
	}
}

// TestProducerIDHasNoSideEffect: to look up the coordinator of no transactional id would make the transaction topic.
func TestProducerIDHasNoSideEffect(t *testing.T) {
	fake, err := localstack.StartFake(1)
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	fake.Cluster.ControlKey(int16(kmsg.FindCoordinator), func(kmsg.Request) (kmsg.Response, error, bool) {
		t.Error("a coordinator was looked up")
		return nil, nil, false
	})
	if _, err := openBroker(t, broker.Config{Brokers: fake.Addrs()}).InitProducer(t.Context()); err != nil {
		t.Fatal(err)
	}
}
