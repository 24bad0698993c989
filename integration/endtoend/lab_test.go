package endtoend_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// session is how long a group waits for a consumer that is dead.
const session = 2 * time.Second

// types are the aggregate types, each with a topic of its own.
var types = []string{"order", "invoice"}

// lab is an outbox and its relay, a broker, and consumers with a database server of their own.
type lab struct {
	t      *testing.T
	random *rand.Rand // decides the faults
	began  time.Time

	outbox *testenv.Env
	kafka  *localstack.Kafka
	server *localstack.Postgres // of the consumers
	inbox  *testenv.Env

	relay     *testenv.Relay
	consumers []*consumer.Process
	workers   int // consumers so far
	topics    []string
	group     string
}

func newLab(t *testing.T, consumers int) *lab {
	t.Helper()
	l := &lab{t: t, began: time.Now(), random: rand.New(rand.NewPCG(*seed, 0))}
	t.Logf("seed %d: %s -endtoend.seed=%d", *seed, t.Name(), *seed)
	testenv.NeedJava(t)
	var err error
	l.kafka, err = localstack.StartKafka(t.Context(), localstack.KafkaConfig{
		Properties: map[string]string{"group.min.session.timeout.ms": "1000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.closeLater(l.kafka.Close)
	if l.server, err = localstack.StartPostgres(t.Context(), localstack.PostgresConfig{Major: testenv.Major(), NoSync: true}); err != nil {
		t.Fatal(err)
	}
	l.closeLater(l.server.Close)
	l.outbox = testenv.New(t, testenv.NoKafka())
	l.outbox.Brokers = l.kafka.Addrs()
	for _, name := range types {
		l.topics = append(l.topics, l.outbox.CreateTopic(name, 3))
	}
	l.group = l.outbox.Prefix + "shipping"
	l.inbox = testenv.New(t, testenv.NoKafka(), testenv.OnPostgres(l.server))
	consumer.Prepare(t, l.inbox.Conn())
	l.outbox.Exec(counters)
	l.startRelay()
	l.relay.WaitReady(patience)
	for range consumers {
		l.consumers = append(l.consumers, l.startConsumer())
	}
	return l
}

func (l *lab) closeLater(closing func() error) {
	l.t.Cleanup(func() {
		if err := closing(); err != nil {
			l.t.Error(err)
		}
	})
}

func (l *lab) startRelay() {
	l.relay = l.outbox.StartRelay(testenv.RelayOptions{
		Args: []string{"--init"}, Settings: testenv.Settings{"postgres.wal_sender_timeout": "2s"},
	})
}

func (l *lab) startConsumer() *consumer.Process {
	l.t.Helper()
	l.workers++
	return consumer.Start(l.t, consumer.Options{
		Name: l.group, URL: l.inbox.URL, Brokers: l.kafka.Addrs(), Topics: l.topics, Worker: l.workers, Session: session,
		FailOneIn: 50,
	})
}

// say prints a line with the time since the start of the lab.
func (l *lab) say(format string, args ...any) {
	l.t.Helper()
	l.t.Logf("%7.2fs %s", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...))
}

// between draws a duration.
func (l *lab) between(least, most time.Duration) time.Duration {
	return least + time.Duration(l.random.Int64N(int64(most-least)))
}

// wait lets some time pass in which everything works.
func (l *lab) wait(least, most time.Duration) { testenv.Pass(l.t, l.between(least, most)) }

// effects is how many there are.
func (l *lab) effects(ctx context.Context) (n int64, err error) {
	conn, err := pgx.Connect(ctx, l.inbox.URL)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, `SELECT count(*) FROM public.effect`).Scan(&n)
	return n, err
}

// judge waits until every committed event has its effect, and stops everything in order. Then the effects must be the
// committed events, each once, in the order of its key, and nothing may be left of the failures.
func (l *lab) judge(committed map[string]int64) {
	l.t.Helper()
	var want int64
	for _, n := range committed {
		want += n
	}
	began := time.Now()
	testenv.Until(l.t, patience, func(ctx context.Context) error {
		got, err := l.effects(ctx)
		if err == nil && got < want {
			err = fmt.Errorf("%d effects of %d events", got, want)
		}
		return err
	})
	l.say("all effects are there %v after the last fault", time.Since(began).Round(time.Millisecond))
	for _, c := range l.consumers {
		if code := c.Stop(patience); code != 0 {
			l.t.Errorf("a consumer exits with %d after SIGTERM, want 0:\n%s", code, c.Output())
		}
	}
	if code := l.relay.Stop(patience); code != 0 {
		l.t.Errorf("the relay exits with %d after SIGTERM, want 0", code)
	}
	conn := l.inbox.Conn()
	effects, err := consumer.Effects(l.t.Context(), conn, l.group)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := consumer.Judge(effects, committed); err != nil {
		l.t.Errorf("seed %d: %v", *seed, err)
	}
	for what, query := range map[string]string{
		"messages that are settled otherwise": `SELECT count(*) FROM public.cdc_relay_inbox WHERE outcome <> 'processed'`,
		"effects without a row of the inbox": `SELECT count(*) FROM public.effect e WHERE NOT EXISTS (
			SELECT FROM public.cdc_relay_inbox i WHERE i.message_id = e.message_id AND i.consumer = e.consumer)`,
		"rows of the inbox without effect": `SELECT count(*) FROM public.cdc_relay_inbox i WHERE NOT EXISTS (
			SELECT FROM public.effect e WHERE i.message_id = e.message_id AND i.consumer = e.consumer)`,
		"dead letters and parked messages": `SELECT count(*) FROM public.cdc_relay_inbox_letter`,
		// One that was frozen may count its failure when another has settled the message; the count is pruned.
		"counts of failed deliveries of messages that are not settled": `SELECT count(*) FROM public.cdc_relay_inbox_attempt a
			WHERE NOT EXISTS (SELECT FROM public.cdc_relay_inbox i WHERE i.message_id = a.message_id AND i.consumer = a.consumer)`,
	} {
		if n := l.inbox.Text(query); n != "0" {
			l.t.Errorf("%s: %s, want none", what, n)
		}
	}
	l.say("%d events of %d keys committed, %d effects by %d consumers", want, len(committed), len(effects), l.workers)
}
