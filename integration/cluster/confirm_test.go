package cluster_test

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Of two partitions one waits for its leader, which is frozen. What later transactions have had acknowledged on the other
// is not confirmed before it, and so a relay that dies then has lost nothing.
func TestFrozenLeader(t *testing.T) {
	c := brokers(t)
	s := scene.New(t, c.addrs())
	topic := s.Topic("order")
	s.Create(topic, [][]int32{{1}, {2}})
	r := s.Start(nil)
	for _, partition := range []int{0, 1} {
		s.Settled(s.Insert("order", keyOf(topic, partition), "before"))
	}

	leader := c.Kafka.Brokers()[0]
	if err := leader.Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = leader.Resume() }()
	first := s.Insert("order", keyOf(topic, 0), "t1")
	s.Insert("order", keyOf(topic, 1), "t2")
	s.Insert("order", keyOf(topic, 1), "t3")
	got := scene.Values(testenv.Consume(t, c.addrs()[1:], topic, 3, patience))
	if want := []string{"before", "t2", "t3"}; !slices.Equal(got, want) {
		t.Errorf("got %q from the other partition, want %q", got, want)
	}
	scene.Reason(t, r, topic+"[0]")
	s.Held(first)
	r.Kill()
	s.Held(first)

	if err := leader.Resume(); err != nil {
		t.Fatal(err)
	}
	r = s.Start(nil)
	s.Settled(first)
	firsts := scene.Firsts(s.Consume(topic, 5, patience))
	if want := []string{"before", "t1", "before", "t2", "t3"}; !slices.Equal(firsts, want) {
		t.Errorf("first copies %q, want %q", firsts, want)
	}
	s.Stop(r)
}

// keyOf returns a key that belongs to one of two partitions.
func keyOf(topic string, partition int) string {
	java := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	key := "k"
	for java.Partition(&kgo.Record{Key: []byte(key)}, 2) != partition {
		key += "k"
	}
	return key
}
