package inboxkafkatests

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
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

// patience is generous: it decides nothing but how long a failure takes.
const patience = 90 * time.Second

// rig is a topic and the database of its consumer's effects.
type rig struct {
	*testenv.Env
	t      *testing.T
	conn   *pgx.Conn
	pool   *pgxpool.Pool
	client *kgo.Client
	topic  string
	log    *process.Output
}

func newRig(t *testing.T, partitions int) *rig {
	t.Helper()
	return newRigOn(t, testenv.New(t, testenv.RealKafka()), partitions)
}

func newRigOn(t *testing.T, env *testenv.Env, partitions int) *rig {
	t.Helper()
	r := &rig{Env: env, t: t, log: &process.Output{}}
	r.conn = r.Conn()
	consumer.Prepare(t, r.conn)
	config, err := pgxpool.ParseConfig(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 20
	if r.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.pool.Close)
	r.topic = r.CreateTopic("order", partitions)
	r.client = r.producer()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the members printed:\n%s", process.Tail(r.log.String()))
		}
	})
	return r
}

func (r *rig) producer(opts ...kgo.Opt) *kgo.Client {
	r.t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(r.Brokers...))...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(client.Close)
	return client
}

// events are the n-th events of keys, from to to.
func (r *rig) events(keys, from, to int) (all []*kgo.Record) {
	for n := from; n <= to; n++ {
		for key := range keys {
			id := fmt.Sprintf("%d-%d", key, n)
			all = append(all, &kgo.Record{
				Topic: r.topic, Key: []byte(strconv.Itoa(key)), Value: []byte(strconv.Itoa(n)),
				Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
			})
		}
	}
	return all
}

func (r *rig) send(records ...*kgo.Record) {
	r.t.Helper()
	if err := r.client.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

// effect writes the effect of an event.
func effect(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
	n, err := strconv.ParseInt(string(m.Value), 10, 64)
	if err != nil {
		return inbox.Permanent(fmt.Errorf("the payload is no number"))
	}
	return consumer.Write(ctx, tx, consumer.Effect{Consumer: "shipping", MessageID: m.ID, Key: string(m.Key), N: n})
}

// member joins the group until leave is called or the test ends.
func (r *rig) member(change ...func(*inbox.Config, *inboxkafka.Config)) (leave func()) {
	r.t.Helper()
	logger := slog.New(slog.NewTextHandler(r.log, nil))
	cfg := inbox.Config{
		Consumer: "shipping", Pool: r.pool, Handler: effect, Logger: logger,
		Backoff: inbox.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
	}
	kafka := inboxkafka.Config{
		Brokers: r.Brokers, Group: r.topic, Topics: []string{r.topic}, Concurrency: 4, MaxInFlight: 100,
		SessionTimeout: 6 * time.Second, CommitInterval: 100 * time.Millisecond, Logger: logger,
	}
	for _, c := range change {
		c(&cfg, &kafka)
	}
	p, err := inbox.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(r.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- inboxkafka.Run(ctx, kafka, p) }()
	leave = sync.OnceFunc(func() {
		stop()
		select {
		case err := <-ended:
			if err != nil {
				r.t.Errorf("Run = %v, want nil", err)
			}
		case <-time.After(patience):
			r.t.Error("Run does not end")
		}
	})
	r.t.Cleanup(leave)
	return leave
}

// until waits for a number of effects, or more.
func (r *rig) until(want int) {
	r.t.Helper()
	testenv.Until(r.t, patience, func(context.Context) error {
		got, err := strconv.Atoi(r.Text("SELECT count(*) FROM public.effect"))
		if err != nil || got < want {
			return fmt.Errorf("%d effects, want %d: %w", got, want, err)
		}
		return nil
	})
}

// inOrder wants the effects of each key to be those of 1, 2, 3 and so on, each once.
func (r *rig) inOrder(keys, last int) {
	r.t.Helper()
	effects, err := consumer.Effects(r.t.Context(), r.conn, "shipping")
	if err != nil {
		r.t.Fatal(err)
	}
	next := map[string]int64{}
	for _, e := range effects {
		if next[e.Key]++; e.N != next[e.Key] {
			r.t.Fatalf("key %s: event %d has its effect when %d is next", e.Key, e.N, next[e.Key])
		}
	}
	for key := range keys {
		if n := next[strconv.Itoa(key)]; n != int64(last) {
			r.t.Errorf("key %d: %d effects, want %d", key, n, last)
		}
	}
}
