package relay

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
)

// newRelay returns a relay, with a slot, a publication and a table, whose publisher
// runs until the test ends.
func newRelay(t *testing.T, kafka *brokers, log io.Writer) *Relay {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(log, nil))
	publisher, err := publish.New(publish.Config{Resume: true}, kafka, logger, nil)
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
