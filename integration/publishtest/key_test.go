package publishtest

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A key is where Java's default partitioner, as franz-go has it, puts it. A record without a key is placed by its id: the
// same id goes to the same partition again, and many spread over all.
func TestPartitionOfKeys(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const keys, without, partitions = 1000, 500, 12
	s.Exec(`INSERT INTO public.outbox (aggregatetype) VALUES ('before the slot')`)
	topics := []string{s.CreateTopic("a-order", partitions), s.CreateTopic("b-order", partitions)}
	var relays []*testenv.Relay
	for _, name := range []string{"a", "b"} {
		relays = append(relays, s.Start(testenv.Settings{
			"postgres.slot": s.Slot + "_" + name, "routing.topic": s.Prefix + name + "-{aggregatetype}",
		}))
	}
	s.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT 'order', CASE WHEN g = 1 THEN '' WHEN g % 3 = 0 THEN 'žluťoučký-🐎-' || g WHEN g % 3 = 1 THEN repeat('k', g % 50) || g
			ELSE md5(g::text) END, 'keyed' FROM generate_series(1, $1::int) g`, keys)
	s.Exec(`INSERT INTO public.outbox (aggregatetype, payload) SELECT 'order', 'bare' FROM generate_series(1, $1::int)`, without)
	java := kgo.StickyKeyPartitioner(nil).ForTopic(topics[0])
	seen, byID, spread := map[string]bool{}, map[string]int32{}, map[int32]int{}
	for _, topic := range topics {
		for _, r := range s.Consume(topic, keys+without, patience) {
			id, _ := r.Header("id")
			if before, known := byID[id]; known && before != r.Partition {
				t.Errorf("message %s is in partition %d of one topic and in %d of the other", id, before, r.Partition)
			}
			byID[id] = r.Partition
			if r.Key == nil {
				spread[r.Partition]++
				continue
			}
			seen[string(r.Key)] = true
			if want := java.Partition(&kgo.Record{Key: r.Key}, partitions); int(r.Partition) != want {
				t.Errorf("key %q is in partition %d, Java puts it into %d", r.Key, r.Partition, want)
			}
		}
	}
	if len(seen) != keys || !seen[""] {
		t.Errorf("%d keys, want %d with the empty one", len(seen), keys)
	}
	for p := range int32(partitions) {
		if n := spread[p]; n < 2*without/partitions/3 {
			t.Errorf("partition %d has %d records without a key: %s", p, n, fmt.Sprint(spread))
		}
	}
	for _, r := range relays {
		s.Stop(r)
	}
}
