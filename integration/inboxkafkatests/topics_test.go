package inboxkafkatests

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/integration/kafkaadmin"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Of several topics those are read that exist, also when one is deleted or made meanwhile.
func TestTopicsComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	first, second := r.topic, r.Topic("later")
	sent := 0
	flows := func(topic string) {
		t.Helper()
		r.topic = topic
		r.send(r.events(4, sent+1, sent+5)...)
		sent += 5
		r.until(4 * sent)
	}
	r.member(func(_ *inbox.Config, c *inboxkafka.Config) { c.Topics = []string{first, second} })
	flows(first)
	if s := r.log.String(); !strings.Contains(s, "waiting for topics") || !strings.Contains(s, second) {
		t.Errorf("it does not say what it waits for:\n%s", s)
	}
	r.CreateTopic("later", 2)
	flows(second)
	admin := kafkaadmin.New(t, r.Brokers)
	admin.Drop(first)
	testenv.Until(t, patience, func(context.Context) error {
		if strings.Count(r.log.String(), "waiting for topics, trying again") != 2 {
			return errors.New("it does not say that a topic has gone")
		}
		return nil
	})
	flows(second)
	r.CreateTopic("order", 1)
	r.client = r.producer() // the one before knows the topic that was deleted
	flows(first)
	if n := strings.Count(r.log.String(), "over: waiting for topics"); n != 2 {
		t.Errorf("%d times all topics were there again, want 2:\n%s", n, r.log.String())
	}
}
