package publish

import (
	"context"
	"log/slog"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// refusing is a broker to which nothing may be sent.
type refusing struct {
	Broker
	t *testing.T
}

func (b refusing) Produce(context.Context, string, int, broker.Batch) (broker.Produced, error) {
	b.t.Error("a batch of a lane that was given up is sent")
	return broker.Produced{}, nil
}

// TestGivenUpWhileEncoding: a lane that is given up between the choice of a batch and
// its first attempt sends nothing and holds no memory.
func TestGivenUpWhileEncoding(t *testing.T) {
	t.Parallel()
	p, err := New(Config{}, refusing{t: t}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.producer.ID = 1
	p.Begin(Session{WALEnd: 1 << 40, Alive: func() bool { return true }})
	record := &Record{Topic: "t", Key: []byte("k"), Position: position.Position{Commit: 1}, Seq: 1}
	if err := p.Publish(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	topic := p.topics["t"]
	topic.looked(2, nil, record.Time)
	l, _ := topic.place(murmur2(record.Key))
	do, _ := l.next(record.Time)
	b := do.batch
	if b == nil {
		t.Fatal("the lane has nothing to send")
	}
	topic.giveUp(1)
	l.send(t.Context(), b)
	if p.budget.used != 0 {
		t.Errorf("%d bytes are left", p.budget.used)
	}
}
