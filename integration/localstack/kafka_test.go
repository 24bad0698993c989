package localstack_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

func TestKafka(t *testing.T) {
	for _, cfg := range []localstack.KafkaConfig{{}, {Brokers: 3}, {Brokers: 3, SeparateController: true}} {
		cfg.Progress = func(s string) { t.Log(s) }
		began := time.Now()
		kafka, err := localstack.StartKafka(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d brokers ready after %v", len(kafka.Addrs()), time.Since(began))
		began = time.Now()
		if err := kafka.Brokers()[0].Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("restart %v", time.Since(began))
		if err := kafka.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
