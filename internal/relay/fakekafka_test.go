package relay

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// brokers is a Kafka whose answers a test gives. Every topic has one partition.
type brokers struct {
	arrived chan string                          // the batch's bytes
	answer  chan func() (broker.Produced, error) // one for each batch; nil acknowledges

	mu    sync.Mutex
	tails map[string][]string // positions in the headers of a topic's records

	acknowledged map[string]int // batches by topic
}

func newBrokers() *brokers {
	return &brokers{
		arrived: make(chan string, 1000), answer: make(chan func() (broker.Produced, error), 1000),
		tails: map[string][]string{}, acknowledged: map[string]int{},
	}
}

func (*brokers) InitProducer(context.Context) (broker.Producer, error) {
	return broker.Producer{ID: 1}, nil
}

func (*brokers) InitTransactional(context.Context, string, broker.Producer) (broker.Producer, error) {
	return broker.Producer{ID: 1}, nil
}
func (*brokers) Partitions(context.Context, string) (int, error)             { return 1, nil }
func (*brokers) PartitionsNow(context.Context, string) (int, error)          { return 1, nil }
func (*brokers) CreateTopic(context.Context, string, broker.TopicSpec) error { return nil }
func (*brokers) TopicSettings(context.Context, string) (broker.TopicSettings, error) {
	return broker.TopicSettings{}, nil
}
func (*brokers) Refresh()                   {}
func (*brokers) Ping(context.Context) error { return nil }

func (b *brokers) Offsets(_ context.Context, topic string, _ int) (broker.Offsets, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return broker.Offsets{End: int64(len(b.tails[topic]))}, nil
}

func (b *brokers) Fetch(_ context.Context, topic string, _ int, offset int64, _ int, _ string, each func(int64, []byte)) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ; offset < int64(len(b.tails[topic])); offset++ {
		each(offset, []byte(b.tails[topic][offset]))
	}
	return offset, nil
}

func (b *brokers) Produce(ctx context.Context, topic string, _ int, batch broker.Batch) (broker.Produced, error) {
	var text strings.Builder
	_, _ = batch.WriteTo(&text)
	b.arrived <- text.String()
	select {
	case answer := <-b.answer:
		if answer != nil {
			return answer()
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.acknowledged[topic]++
		base := len(b.tails[topic])
		b.tails[topic] = append(b.tails[topic], stampForm.FindAllString(text.String(), -1)...)
		return broker.Produced{BaseOffset: int64(base)}, nil
	case <-ctx.Done():
		return broker.Produced{}, ctx.Err()
	}
}

// stampForm is how the position header of a record looks.
var stampForm = regexp.MustCompile(`1(\.[0-9a-f]+){6}\.[mr]\.[0-9a-f]{8}\.[0-9a-f]{16}`)

// acknowledge lets a batch that has arrived, or the next one, succeed.
func (b *brokers) acknowledge() { b.answer <- nil }

// records returns how many records a topic holds.
func (b *brokers) records(topic string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tails[topic])
}

// holds puts a record at the end of a topic.
func (b *brokers) holds(topic string, s position.Stamp) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tails[topic] = append(b.tails[topic], s.String())
}

// wantBatch waits for a batch and checks that it holds these texts, in this order.
func (b *brokers) wantBatch(t *testing.T, payloads ...string) {
	t.Helper()
	select {
	case got := <-b.arrived:
		for _, p := range payloads {
			_, rest, found := strings.Cut(got, p)
			if !found {
				t.Fatalf("the batch lacks %q, or has it too early", p)
			}
			got = rest
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no batch arrives")
	}
}
