package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Rows of a topic that does not exist wait until it does.
func TestTopicCreatedLate(t *testing.T) {
	l := newLoad(t, nil, checker.Config{Seed: 16, Types: []string{"order", "invoice"}}, one)
	if reason := l.stands(2 * time.Second); !strings.Contains(reason, l.env.Topic("invoice")) {
		t.Errorf("the reason does not name the topic: %s", reason)
	}
	l.env.CreateTopic("invoice", 6, safe...)
	l.flows("the creation of the topic", soon)
	l.judge()
}

// A topic is deleted while the relay runs: its rows wait. Made again, it gets everything that is not confirmed, also what
// the old one had, and the relay raises the alarm: what was confirmed is gone with the old topic.
func TestTopicMadeAgain(t *testing.T) {
	brokers(t)
	for name, tt := range map[string]struct {
		rows   int                                // committed while there is no topic
		before func(s *scene.Scene, topic string) // the next row is committed
	}{
		"rows wait":               {rows: 10},
		"nothing waits":           {},
		"somebody else is faster": {before: func(s *scene.Scene, topic string) { strangers(t, s, topic, 50) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := scene.New(t, shared.addrs())
			topic := s.CreateTopic("order", 1, safe...)
			r := s.Start(nil)
			s.Settled(s.Insert("order", "k", scene.Counted(1, 10)...))
			unconfirmed := holdBack(s)
			s.Insert("order", "k", scene.Counted(11, 20)...)
			s.Consume(topic, 20, patience)

			s.Drop(topic)
			if tt.rows > 0 {
				s.Insert("order", "k", scene.Counted(21, 20+tt.rows)...)
				scene.Reason(t, r, topic)
			} else {
				testenv.Pass(t, 3*time.Second)
			}
			s.CreateTopic("order", 1, safe...)
			began := time.Now()
			if tt.before != nil {
				tt.before(s, topic)
			}
			s.Insert("order", "k", strconv.Itoa(21+tt.rows))
			judgeNewHistory(t, s, r, topic, scene.Counted(11, 21+tt.rows))
			t.Logf("all again %v after the topic", time.Since(began).Round(10*time.Millisecond))
			s.Held(unconfirmed)
			letGo(t, s, r, unconfirmed)
		})
	}
}

// strangers appends records of another producer to partition 0.
func strangers(t *testing.T, s *scene.Scene, topic string, n int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range n {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("of another producer")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// holdBack commits a row of a topic that does not exist, so that nothing later is confirmed.
func holdBack(s *scene.Scene) (within string) { return s.Insert("absent", "k", "1") }

// letGo creates the topic of holdBack, and ends the relay once all is confirmed.
func letGo(t *testing.T, s *scene.Scene, r *testenv.Relay, within string) {
	t.Helper()
	s.CreateTopic("absent", 1, safe...)
	s.Settled(within)
	r.WaitReady(soon)
	s.Settled(s.Insert("order", "k", "last"))
	s.Stop(r)
}

// judgeNewHistory waits until the records of the newest history in the topic, a single partition, are the wanted ones,
// each once and in order, and the relay has raised the alarm.
func judgeNewHistory(t *testing.T, s *scene.Scene, r *testenv.Relay, topic string, want []string) {
	t.Helper()
	var got []string
	testenv.Until(t, soon, func(ctx context.Context) error {
		all, err := s.Layout(ctx, topic)
		if err != nil || len(all) == 0 || all[0].Leader < 0 {
			return errors.Join(err, errors.New("no leader"))
		}
		got = newestHistory(s.Consume(topic, s.Count(topic), patience))
		if !slices.Equal(got, want) {
			return fmt.Errorf("the newest history has %q, want %q", got, want)
		}
		return nil
	})
	alarms := 0
	for line := range strings.Lines(r.Output()) {
		if strings.Contains(line, `"level":"ERROR"`) && strings.Contains(line, topic) && strings.Contains(line, "history") {
			alarms++
		}
	}
	if alarms != 1 {
		t.Errorf("%d alarms, want one", alarms)
	}
	if n := scene.Metric(t, r, "cdc_relay_history_renewed_total"); n != 1 {
		t.Errorf("history was renewed %v times, want once", n)
	}
}

// newestHistory are the values of the records whose position header names the same history as the last one's: the second
// of its parts.
func newestHistory(records []testenv.Record) (values []string) {
	history := func(r testenv.Record) string {
		stamp, _ := r.Header("cdc-relay-position")
		return strings.SplitN(stamp+"..", ".", 3)[1]
	}
	for _, r := range records {
		if history(r) == history(records[len(records)-1]) {
			values = append(values, string(r.Value))
		}
	}
	return values
}

// What makes acknowledgements weak, or a start impossible, is said once.
func TestWarnings(t *testing.T) {
	s := scene.New(t, brokers(t).addrs())
	s.CreateTopic("weak", 1)
	s.CreateTopic("strong", 1, "min.insync.replicas", "2")
	r := s.Start(testenv.Settings{"kafka.brokers": s.Brokers[:1], "kafka.create_topics": map[string]any{
		"partitions": 1, "replication_factor": 3,
	}})
	for range 3 {
		s.Insert("weak", "k", "1")
		s.Insert("strong", "k", "1")
		s.Settled(s.Insert("made", "k", "1"))
	}
	const weak = "one replica alone may acknowledge"
	r.WaitOutput(weak, patience)
	s.Stop(r)
	if out := r.Output(); strings.Count(out, weak) != 1 || !strings.Contains(out, s.Topic("weak")) || strings.Contains(out, s.Topic("strong")) {
		t.Error("want one warning, about the topic weak")
	}
	if n := strings.Count(r.Output(), "one bootstrap address for several brokers"); n != 1 {
		t.Errorf("warned %d times of a single bootstrap address, want once", n)
	}
	if got := s.TopicSettings(s.Topic("made"))["min.insync.replicas"]; got != "2" {
		t.Errorf("the topic that the relay made has min.insync.replicas %s, want 2", got)
	}
}
