package cluster_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// The leaders of all partitions move, again and again, while rows come. The first bootstrap address is dead all the time.
func TestLeadersMove(t *testing.T) {
	brokers(t)
	port, err := localstack.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	dead := append([]string{port.Addr()}, shared.addrs()...)
	l := newLoad(t, testenv.Settings{"kafka.brokers": dead}, checker.Config{Seed: 11}, one)
	l.flows("a start with a dead bootstrap address", soon)
	for range 3 {
		admin(t).MoveLeaders(l.env.Topic("order"))
		l.flows("a move of all leaders", soon)
	}
	l.judge()
}

// A broker dies, and with it for half a minute the only replica of a partition. The other lanes go on while there is
// memory; nothing is confirmed past what waits.
func TestPartitionWithoutLeader(t *testing.T) {
	brokers(t)
	victim := shared.Kafka.Brokers()[2]
	l := newLoad(t, nil, checker.Config{Seed: 12, Types: []string{"order", "invoice"}, Pause: 20 * time.Millisecond}, func(env *testenv.Env) {
		one(env)
		admin(t).Create(env.Topic("invoice"), [][]int32{{1}, {2}, {3}})
	})
	died := time.Now()
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Logf("not ready: %s", l.stands(5*time.Second))
	testenv.Pass(t, time.Until(died.Add(30*time.Second)))
	if leader := admin(t).Leader(l.env.Topic("invoice"), 2); leader != -1 {
		t.Fatalf("partition 2 is led by %d, want nobody", leader)
	}
	if err := victim.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.flows("half a minute without a leader", soon)
	admin(t).InSync(l.env.Topic("order"), 3)
	l.judge()
}

// Each broker in turn is stopped in order and started again.
func TestRollingRestart(t *testing.T) {
	l := newLoad(t, nil, checker.Config{Seed: 7, Pause: 5 * time.Millisecond}, one)
	for _, b := range shared.Kafka.Brokers() {
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		admin(t).InSync(l.env.Topic("order"), 3)
	}
	l.flows("the last restart", soon)
	l.judge()
}

// With fewer replicas in sync than the topic wants nothing is acknowledged, so nothing is confirmed.
func TestTooFewReplicas(t *testing.T) {
	l := newLoad(t, nil, checker.Config{Seed: 13}, one)
	for _, b := range shared.Kafka.Brokers()[1:] {
		if err := b.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("not ready: %s", l.stands(3*time.Second))
	for _, b := range shared.Kafka.Brokers()[1:] {
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l.flows("the return of two brokers", soon)
	admin(t).InSync(l.env.Topic("order"), 3)
	l.judge()
}
