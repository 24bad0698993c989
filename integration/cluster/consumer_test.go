package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/process"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A consumer follows its partitions, and the coordinator of its group, to other brokers: each event has one effect, in
// the order of its key.
func TestConsumerFollows(t *testing.T) {
	const keys = 12
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = brokers(t).addrs()
	conn := env.Conn()
	consumer.Prepare(t, conn)
	topic := env.CreateTopic("order", 3, safe...)
	client, err := kgo.NewClient(kgo.SeedBrokers(env.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	log := consume(t, env, topic)
	sent := 0
	flows := func(after string) {
		t.Helper()
		var records []*kgo.Record
		for range 10 {
			sent++
			for key := range keys {
				records = append(records, &kgo.Record{
					Topic: topic, Key: []byte(strconv.Itoa(key)), Value: []byte(strconv.Itoa(sent)),
					Headers: []kgo.RecordHeader{{Key: "id", Value: fmt.Appendf(nil, "%d-%d", key, sent)}},
				})
			}
		}
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		testenv.Until(t, patience, func(context.Context) error {
			if got := env.Text("SELECT count(*) FROM public.effect"); got != strconv.Itoa(keys*sent) {
				return fmt.Errorf("after %s: %s effects, want %d; the member printed:\n%s", after, got, keys*sent, process.Tail(log.String()))
			}
			return nil
		})
	}
	flows("the start")
	for range 2 {
		admin(t).MoveLeaders(topic)
		flows("a move of the leaders")
	}
	for _, b := range shared.Kafka.Brokers() {
		if err := b.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		flows("the end of a broker")
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		admin(t).InSync(topic, 3)
	}
	effects, err := consumer.Effects(t.Context(), conn, "shipping")
	if err != nil {
		t.Fatal(err)
	}
	next := map[string]int64{}
	for _, e := range effects {
		if next[e.Key]++; e.N != next[e.Key] {
			t.Fatalf("key %s: event %d has its effect when %d is next", e.Key, e.N, next[e.Key])
		}
	}
}

// consume runs a member of a group on the topic until the test ends.
func consume(t *testing.T, env *testenv.Env, topic string) *process.Output {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), env.URL)
	if err != nil {
		t.Fatal(err)
	}
	log := &process.Output{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	p, err := inbox.New(inbox.Config{
		Consumer: "shipping", Pool: pool, Logger: logger,
		Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			n, err := strconv.ParseInt(string(m.Value), 10, 64)
			if err != nil {
				return err
			}
			return consumer.Write(ctx, tx, consumer.Effect{Consumer: "shipping", MessageID: m.ID, Key: string(m.Key), N: n})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- inboxkafka.Run(ctx, inboxkafka.Config{
			Brokers: slices.Clone(env.Brokers), Group: topic, Topics: []string{topic}, SessionTimeout: 6 * time.Second, Logger: logger,
		}, p)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		pool.Close()
	})
	return log
}
