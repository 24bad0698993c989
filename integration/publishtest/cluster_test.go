package publishtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// TestCluster has three brokers and a controller of their own, so that any broker may go.
func TestCluster(t *testing.T) {
	t.Parallel()
	needJava(t)
	kafka, err := localstack.StartKafka(t.Context(), localstack.KafkaConfig{Brokers: 3, SeparateController: true})
	if err != nil {
		t.Fatal(err)
	}
	defer kafka.Close()
	t.Run("warnings", func(t *testing.T) { warnings(t, kafka) })
	t.Run("too few replicas", func(t *testing.T) { tooFewReplicas(t, kafka) })
	t.Run("rolling restart", func(t *testing.T) { rollingRestart(t, kafka) })
}

// What makes acknowledgements weak, or a start impossible, is said once.
func warnings(t *testing.T, kafka *localstack.Kafka) {
	s := newSceneOn(t, kafka)
	s.CreateTopic("weak", 1)
	s.CreateTopic("strong", 1, "min.insync.replicas", "2")
	r := s.start(testenv.Settings{"kafka.brokers": s.Brokers[:1], "kafka.create_topics": map[string]any{
		"partitions": 1, "replication_factor": 3,
	}})
	for range 3 {
		s.insert("weak", "k", "1")
		s.insert("strong", "k", "1")
		s.settled(s.insert("made", "k", "1"))
	}
	const weak = "one replica alone may acknowledge"
	r.WaitOutput(weak, patience)
	s.stop(r)
	if out := r.Output(); strings.Count(out, weak) != 1 || !strings.Contains(out, s.Topic("weak")) || strings.Contains(out, s.Topic("strong")) {
		t.Error("want one warning, about the topic weak")
	}
	if n := strings.Count(r.Output(), "one bootstrap address for several brokers"); n != 1 {
		t.Errorf("warned %d times of a single bootstrap address, want once", n)
	}
	if got := s.settings(s.Topic("made"))["min.insync.replicas"]; got != "2" {
		t.Errorf("the topic that the relay made has min.insync.replicas %s, want 2", got)
	}
}

// Each broker in turn is stopped in order and started again while rows come: none is lost, out of order or repeated.
func rollingRestart(t *testing.T, kafka *localstack.Kafka) {
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = kafka.Addrs()
	topic := env.CreateTopic("order", 6, "min.insync.replicas", "2")
	if res := env.Run("init", "--config", env.WriteConfig(nil)); res.Code != 0 {
		t.Fatal(res.Stderr)
	}
	c, err := checker.New(checker.Config{
		URL: env.URL, Slot: env.Slot, Brokers: env.Brokers, TopicPrefix: env.Prefix,
		Keys: 100, Pause: 5 * time.Millisecond, Padding: 200, Rollbacks: 0.05, Seed: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := env.StartRelay(testenv.RelayOptions{})
	r.WaitReady(patience)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wrote, watched := make(chan error, 1), make(chan struct{})
	go func() { wrote <- c.Write(ctx) }()
	go func() { defer close(watched); c.Watch(ctx, 100*time.Millisecond) }()
	a := newAdmin(t, env.Brokers)
	for _, b := range kafka.Brokers() {
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.inSync(topic, 3)
	}
	cancel()
	<-watched
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	judging, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	report, err := c.Wait(judging)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report.String())
	if !report.OK() || report.Duplicates > 0 {
		t.Errorf("lost, reordered or repeated: %s", report.String())
	}
	r.WaitReady(patience)
	if code := r.Stop(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// With fewer replicas in sync than the topic wants nothing is acknowledged, so nothing is confirmed; the relay says so
// and goes on by itself.
func tooFewReplicas(t *testing.T, kafka *localstack.Kafka) {
	s := newSceneOn(t, kafka)
	topic := s.CreateTopic("order", 2, "min.insync.replicas", "2")
	r := s.start(nil)
	s.settled(s.insert("order", "k", "1"))
	for _, b := range kafka.Brokers()[1:] {
		if err := b.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Start(context.Background()) }) // For the next test, should this one end early.
	}
	within := s.insert("order", "k", "2", "3")
	reason(t, r, topic, "Not Enough Replicas")
	s.held(within)
	for _, b := range kafka.Brokers()[1:] {
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.settled(within)
	if got := values(s.Consume(topic, 3, patience)); len(got) != 3 || s.count(topic) != 3 {
		t.Errorf("got %q, want each row once", got)
	}
	r.WaitReady(patience)
	s.stop(r)
}
