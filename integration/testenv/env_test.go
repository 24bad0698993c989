package testenv_test

import (
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestEnv(t *testing.T) {
	env := testenv.New(t)
	env.Exec("CREATE TABLE t (id int)")
	env.Exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", env.Slot)
	topic := env.CreateTopic("orders", 3)
	client, err := kgo.NewClient(kgo.SeedBrokers(env.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 5 {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(env.Consume(topic, 5, 10*time.Second)); got != 5 {
		t.Errorf("got %d records, want 5", got)
	}
}

func TestRun(t *testing.T) {
	env := testenv.New(t, testenv.NoKafka())
	if got := env.Run("version"); got.Code != 0 {
		t.Errorf("got %+v", got)
	}
}
