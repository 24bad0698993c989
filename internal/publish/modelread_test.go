package publish_test

import (
	"context"
	"slices"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// reader returns the partition for a request that reads it, or that request's error.
func (m *modelBroker) reader(ctx context.Context, topic string, partition int) (*modelPartition, error) {
	m.mu.Lock()
	latency := m.latency
	m.mu.Unlock()
	if err := wait(ctx, nil, latency); err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	m.mu.Lock()
	if partition >= len(m.topics[topic]) {
		m.mu.Unlock()
		return nil, protocol.NewErrNoTopic(topic)
	}
	p := m.topics[topic][partition]
	m.fetches++
	var err error
	if len(p.reads) > 0 {
		err, p.reads = p.reads[0], p.reads[1:]
	}
	hook := p.onRead
	m.mu.Unlock()
	if hook != nil {
		hook()
	}
	return p, err
}

func (p *modelPartition) highWatermark() int64 { return int64(len(p.log) - p.hidden) }

func (m *modelBroker) Offsets(ctx context.Context, topic string, partition int) (broker.Offsets, error) {
	p, err := m.reader(ctx, topic, partition)
	if err != nil {
		return broker.Offsets{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return broker.Offsets{First: p.first, End: p.highWatermark()}, nil
}

func (m *modelBroker) Fetch(ctx context.Context, topic string, partition int, offset int64, _ int, header string, each func(int64, []byte)) (int64, error) {
	p, err := m.reader(ctx, topic, partition)
	if err != nil {
		return offset, err
	}
	m.mu.Lock()
	if offset < p.first || offset > int64(len(p.log)) {
		m.mu.Unlock()
		return offset, kafka.OffsetOutOfRange
	}
	n := m.perFetch
	if n == 0 {
		n = 10
	}
	end := max(offset, min(offset+int64(n), p.highWatermark()))
	records := slices.Clone(p.log[offset:end])
	m.mu.Unlock()
	if header != position.Header {
		m.complain("header %q is asked for", header)
	}
	for i, r := range records {
		if r.gone {
			continue
		}
		value := slices.Clone(r.header)
		each(offset+int64(i), value)
		for j := range value { // It is valid during the call only.
			value[j] = 0
		}
	}
	return end, nil
}

// InitTransactional follows KIP-360: a known producer that is not the last one given
// out is fenced.
func (m *modelBroker) InitTransactional(_ context.Context, id string, known broker.Producer) (broker.Producer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	epoch, ok := m.epochs[id]
	if known.ID >= 0 && (!ok || known.Epoch != epoch) {
		return broker.Producer{ID: -1}, kafka.ProducerFenced
	}
	if m.epochs == nil {
		m.epochs = map[string]int16{}
	}
	if ok {
		epoch++
	}
	m.epochs[id] = epoch
	return broker.Producer{ID: 1000, Epoch: epoch}, nil
}
