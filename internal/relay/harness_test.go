package relay

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
)

// newRelay returns a relay, with a slot, a publication and a table, whose publisher
// runs until the test ends.
func newRelay(t *testing.T, kafka *brokers, log io.Writer) *Relay {
	t.Helper()
	return newRelayWith(t, publish.Config{Resume: true}, kafka, log)
}

// newKeepingRelay returns one that keeps its dead letters in a box.
func newKeepingRelay(t *testing.T, kafka *brokers, log io.Writer) (*Relay, *letterBox) {
	t.Helper()
	var r *Relay
	r = newRelayWith(t, publish.Config{
		Resume: true, DeadLetter: true,
		Refused: func(ctx context.Context, f *publish.Refusal) error { return r.Refused(ctx, f) },
	}, kafka, log)
	box := newLetterBox()
	box.keeps(r)
	return r, box
}

func newRelayWith(t *testing.T, cfg publish.Config, kafka *brokers, log io.Writer) *Relay {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(log, nil))
	publisher, err := publish.New(cfg, kafka, logger, nil)
	if err != nil {
		t.Fatal(err)
	}
	mapper, err := record.New(record.Config{
		Tables: []record.Table{{Schema: "public", Name: "outbox"}}, Topic: "{aggregatetype}", Key: "{aggregateid}",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = publisher.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	r := New(Config{ShutdownTimeout: 3 * time.Second, Spec: catalog.Spec{Slot: "s", Publication: "p", Tables: []catalog.TableSpec{
		{Name: catalog.TableName{Schema: "public", Name: "outbox"}, Required: []string{"id"}},
	}}}, mapper, publisher, kafka, logger, nil)
	r.openStore = func(context.Context) (store, error) { return noStore{}, nil }
	return r
}

// acquired returns a session that has the slot of f and does not know yet where to
// go on, and the other end of its stream.
func acquired(t *testing.T, r *Relay, f *fakeServer) (*session, *walsender) {
	t.Helper()
	db, err := r.openCatalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server, err := db.Server(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.start(t.Context(), db, server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close(context.Background()) })
	return s, f.streams(t)
}

// begun returns a session that streams from a walsender.
func begun(t *testing.T, r *Relay) (*session, *walsender) {
	t.Helper()
	s, w := acquired(t, r, newFakeServer(t, r))
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, w
}

// running runs a session of begun until the test or stop ends it.
func running(t *testing.T, s *session) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		err := s.run(ctx)
		s.r.publisher.End()
		s.close(ctx)
		result <- err
	}()
	once := sync.OnceValue(func() error { cancel(); return <-result })
	t.Cleanup(func() { _ = once() })
	return once
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	limit := time.After(10 * time.Second)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-limit:
			t.Fatal("it does not happen")
		}
	}
}

// collected is the number of series of a metric.
func collected(c prometheus.Collector) int {
	metrics := make(chan prometheus.Metric, 100)
	c.Collect(metrics)
	return len(metrics)
}

// batches returns how many batches were acknowledged.
func (b *brokers) batches(topic string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.acknowledged[topic]
}
