package publish

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

type okBroker struct {
	next int64
	recs []string
}

func (b *okBroker) InitProducer(context.Context) (broker.Producer, error) { return broker.Producer{ID: 7}, nil }
func (b *okBroker) Partitions(context.Context, string) (int, error)      { return 1, nil }
func (b *okBroker) CreateTopic(context.Context, string, broker.TopicSpec) error {
	return nil
}
func (b *okBroker) Refresh()                   {}
func (b *okBroker) Ping(context.Context) error { return nil }
func (b *okBroker) Produce(_ context.Context, _ string, _ int, batch broker.Batch) (broker.Produced, error) {
	var buf bytes.Buffer
	buf.Write(make([]byte, 4))
	batch.WriteTo(&buf)
	raw := buf.Bytes()
	raw[0], raw[1], raw[2], raw[3] = byte((len(raw)-4)>>24), byte((len(raw)-4)>>16), byte((len(raw)-4)>>8), byte(len(raw)-4)
	var rs protocol.RecordSet
	if _, err := rs.ReadFrom(bytes.NewReader(raw)); err != nil {
		return broker.Produced{}, err
	}
	base := b.next
	for {
		r, err := rs.Records.ReadRecord()
		if err == io.EOF {
			break
		}
		if err != nil {
			return broker.Produced{}, err
		}
		v, _ := protocol.ReadAll(r.Value)
		b.recs = append(b.recs, fmt.Sprintf("%s %s=%s", v, r.Headers[0].Key, r.Headers[0].Value))
		b.next++
	}
	return broker.Produced{BaseOffset: base}, nil
}

func TestSmoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &okBroker{}
		p, err := New(Config{}, b, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		p.Begin(Session{Alive: func() bool { return true }})
		for i := range 100 {
			err := p.Publish(ctx, &Record{Topic: "t", Value: fmt.Appendf(nil, "v%d", i), ID: []byte("x"), Time: time.Now(), Seq: uint64(i + 1), Position: position.Position{Commit: 5, LSN: 5, Kind: position.Row, Index: uint32(i)}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Drained(ctx); err != nil {
			t.Fatal(err)
		}
		if len(b.recs) != 100 || p.budget.used != 0 || p.rows != 0 {
			t.Errorf("%d records, %d bytes, %d rows", len(b.recs), p.budget.used, p.rows)
		}
		t.Log(b.recs[0], b.recs[99])
		cancel()
		<-done
	})
}
