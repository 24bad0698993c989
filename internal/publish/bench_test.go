package publish_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// sink acknowledges everything, after copying it as a transport would.
type sink struct{ offsets [64]atomic.Int64 }

func (s *sink) InitProducer(context.Context) (broker.Producer, error) {
	return broker.Producer{ID: 1}, nil
}
func (s *sink) Partitions(context.Context, string) (int, error)             { return 8, nil }
func (s *sink) PartitionsNow(context.Context, string) (int, error)          { return 8, nil }
func (s *sink) CreateTopic(context.Context, string, broker.TopicSpec) error { return nil }
func (s *sink) TopicSettings(context.Context, string) (broker.TopicSettings, error) {
	return broker.TopicSettings{}, nil
}

func (s *sink) Offsets(context.Context, string, int) (broker.Offsets, error) {
	return broker.Offsets{}, nil
}

func (s *sink) Fetch(context.Context, string, int, int64, int, string, func(int64, []byte)) (int64, error) {
	return 0, nil
}

func (s *sink) InitTransactional(context.Context, string, broker.Producer) (broker.Producer, error) {
	return broker.Producer{}, nil
}
func (s *sink) Refresh()                   {}
func (s *sink) Ping(context.Context) error { return nil }
func (s *sink) Produce(_ context.Context, _ string, partition int, b broker.Batch) (broker.Produced, error) {
	if _, err := b.WriteTo(io.Discard); err != nil {
		return broker.Produced{}, err
	}
	// The offset only has to rise.
	return broker.Produced{BaseOffset: s.offsets[partition].Add(1 << 20)}, nil
}

// BenchmarkPublish measures a record's way from Publish to its acknowledgement.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{300, 2000, 20000} {
		for _, codec := range []string{"none", "lz4"} {
			b.Run(fmt.Sprintf("%d/%s", size, codec), func(b *testing.B) { benchmarkPublish(b, size, codec) })
		}
	}
}

func benchmarkPublish(b *testing.B, size int, codec string) {
	p, err := publish.New(publish.Config{Compression: codec}, new(sink), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	defer func() { cancel(); <-done }()
	p.Begin(publish.Session{Alive: func() bool { return true }})
	value := make([]byte, size)
	for i := range value {
		value[i] = byte('a' + i%7)
	}
	now := time.Now()
	r := publish.Record{
		Topic: "orders", Value: value, Time: now, CommitTime: now,
		Headers: []publish.Header{{Name: "id", Value: []byte("01890a5d-ac96-774b-bcce-b302099a8057")}, {Name: "type", Value: []byte("OrderPlaced")}},
		ID:      []byte("01890a5d-ac96-774b-bcce-b302099a8057"),
	}
	var key []byte
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		key = fmt.Appendf(key[:0], "%d", i%1000)
		r.Key, r.Seq = key, uint64(i+1)
		r.Position = position.Position{Commit: 1, LSN: 1, Kind: position.Row, Index: uint32(i)}
		if err := p.Publish(ctx, &r); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Drained(ctx); err != nil {
		b.Fatal(err)
	}
}
