// Package inboxtest delivers messages to a handler the way that a broker does on a bad
// day: twice, at the same moment, in another order, and with a crash just before or just
// after the commit. It works on the database that the handler's effects go to, so that
// the test sees what production would:
//
//	c := inboxtest.New(t, pool, handler)
//	m := inboxtest.Message("orders", "42", []byte(`{"total": 5}`))
//	c.CrashBeforeCommit(m)
//	c.DeliverConcurrently(20, m)
//	c.RequireProcessedOnce(m, "SELECT count(*) FROM shipment WHERE order_id = 42")
//
// The database must have the tables of the inbox (cdc-relay migrate up, or the scripts of
// migrations by any tool).
package inboxtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Patience is how long a method waits before it fails the test: for the runner, and for
// a message that is to be settled.
const Patience = 30 * time.Second

// Option changes the consumer of a test.
type Option func(*inbox.Config)

// WithConsumer names the consumer. Default: the name of the test, so that tests on one
// database do not settle each other's messages.
func WithConsumer(name string) Option { return func(c *inbox.Config) { c.Consumer = name } }

// WithConfig changes any setting, as the service under test does. Handler and Pool are
// those of [New].
func WithConfig(change func(*inbox.Config)) Option { return func(c *inbox.Config) { change(c) } }

// Consumer delivers messages to a handler. Its methods fail the test, and must be called
// by the test's own goroutine.
type Consumer struct {
	t       testing.TB
	cfg     inbox.Config
	handler inbox.Handler
	crash   atomic.Bool // the handler that runs now loses its connection at the end
	crashed atomic.Bool

	processor *inbox.Processor
}

// New returns a consumer with the handler. It retries at once, so that a test does not
// wait: Backoff is a millisecond unless an option says otherwise.
func New(t testing.TB, pool *pgxpool.Pool, handler inbox.Handler, opts ...Option) *Consumer {
	t.Helper()
	c := &Consumer{t: t, handler: handler, cfg: inbox.Config{
		Consumer:     t.Name(),
		Backoff:      inbox.Backoff{Initial: time.Millisecond, Max: time.Millisecond},
		PollInterval: 10 * time.Millisecond,
		Logger:       slog.New(slog.DiscardHandler),
	}}
	for _, opt := range opts {
		opt(&c.cfg)
	}
	c.cfg.Pool, c.cfg.Handler = pool, c.handle
	c.restart()
	if err := c.processor.Check(t.Context()); err != nil {
		t.Fatalf("inboxtest: %v", err)
	}
	return c
}

// Processor returns the one that handles messages now; a crash replaces it.
func (c *Consumer) Processor() *inbox.Processor { return c.processor }

// restart begins anew with an empty memory, as a new process does.
func (c *Consumer) restart() {
	c.t.Helper()
	processor, err := inbox.New(c.cfg)
	if err != nil {
		c.t.Fatalf("inboxtest: %v", err)
	}
	c.processor = processor
}

// handle calls the handler under test, and loses the connection behind it when the test
// wants a crash: the server then sees what it sees when a process is killed.
func (c *Consumer) handle(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
	if err := c.handler(ctx, tx, m); err != nil {
		return err
	}
	if c.crash.CompareAndSwap(true, false) {
		c.crashed.Store(true)
		return tx.Conn().Close(ctx)
	}
	return nil
}

// Message returns a message with an id of its own. An empty key is none, a nil value a
// tombstone.
func Message(topic, key string, value []byte, headers ...inbox.Header) *inbox.Message {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	m := &inbox.Message{ID: hex.EncodeToString(id[:]), Topic: topic, Value: value, Time: time.Now()}
	if key != "" {
		m.Key = []byte(key)
	}
	m.Headers = append([]inbox.Header{{Name: "id", Value: []byte(m.ID)}}, headers...)
	return m
}

// Deliver delivers a message once and returns what became of it.
func (c *Consumer) Deliver(m *inbox.Message) inbox.Result {
	c.t.Helper()
	return c.processor.Process(c.t.Context(), m)
}

// DeliverUntilSettled delivers a message until it is not to be delivered again, and
// returns the last result.
func (c *Consumer) DeliverUntilSettled(m *inbox.Message) inbox.Result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), Patience)
	defer cancel()
	for {
		r := c.processor.Process(ctx, m)
		if r.Outcome != inbox.Retry {
			return r
		}
		pause := time.NewTimer(r.After)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			c.t.Fatalf("inboxtest: message %s is not settled after %v: %v", m.ID, Patience, r.Err)
		}
	}
}

// DeliverTwice delivers a message until it is settled and once more, and fails the test
// unless the second copy is a duplicate.
func (c *Consumer) DeliverTwice(m *inbox.Message) (first inbox.Result) {
	c.t.Helper()
	first = c.DeliverUntilSettled(m)
	if second := c.DeliverUntilSettled(m); second.Outcome != inbox.Duplicate {
		c.t.Fatalf("inboxtest: the second copy of message %s is %v (%v), not a duplicate", m.ID, second.Outcome, second.Err)
	}
	return first
}

// DeliverConcurrently delivers n copies of a message at the same moment and returns what
// became of each. It fails the test when more than one of them is processed.
func (c *Consumer) DeliverConcurrently(n int, m *inbox.Message) []inbox.Result {
	c.t.Helper()
	results := make([]inbox.Result, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			results[i] = c.processor.Process(c.t.Context(), m)
		})
	}
	close(start)
	wg.Wait()
	processed := 0
	for _, r := range results {
		if r.Outcome == inbox.Processed {
			processed++
		}
	}
	if processed > 1 {
		c.t.Fatalf("inboxtest: %d of %d copies of message %s were processed", processed, n, m.ID)
	}
	return results
}

// CrashBeforeCommit delivers a message to a process that dies after the handler and
// before the commit: nothing of the effect may be left. What runs afterwards is a new
// process, to which the broker delivers the message again.
func (c *Consumer) CrashBeforeCommit(m *inbox.Message) {
	c.t.Helper()
	c.crashed.Store(false)
	c.crash.Store(true)
	r := c.processor.Process(c.t.Context(), m)
	c.crash.Store(false)
	if !c.crashed.Load() {
		c.t.Fatalf("inboxtest: message %s ended as %v (%v) without getting to the end of the handler", m.ID, r.Outcome, r.Err)
	}
	if r.Outcome != inbox.Retry {
		c.t.Fatalf("inboxtest: message %s is %v though its transaction was lost", m.ID, r.Outcome)
	}
	c.restart()
}

// CrashAfterCommit delivers a message until it is settled to a process that dies before
// the broker hears of it. What runs afterwards is a new process, to which the broker
// delivers the message again.
func (c *Consumer) CrashAfterCommit(m *inbox.Message) {
	c.t.Helper()
	c.DeliverUntilSettled(m)
	c.restart()
}

// RequireProcessedOnce fails the test unless the message is settled as processed, and
// the query, which counts its effect, returns 1.
func (c *Consumer) RequireProcessedOnce(m *inbox.Message, effect string, args ...any) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), Patience)
	defer cancel()
	if got := c.outcome(ctx, m); got != "processed" {
		c.t.Fatalf("inboxtest: message %s is %s, not processed", m.ID, got)
	}
	var n int64
	if err := c.cfg.Pool.QueryRow(ctx, effect, args...).Scan(&n); err != nil {
		c.t.Fatalf("inboxtest: count the effect of message %s: %v", m.ID, err)
	}
	if n != 1 {
		c.t.Fatalf("inboxtest: message %s has its effect %d times, not once", m.ID, n)
	}
}

// outcome returns how the message is settled.
func (c *Consumer) outcome(ctx context.Context, m *inbox.Message) string {
	c.t.Helper()
	var outcome string
	err := c.cfg.Pool.QueryRow(ctx, `SELECT coalesce((SELECT outcome FROM public.cdc_relay_inbox
		WHERE message_id = $1 AND consumer = $2), 'not settled')`, m.ID, c.cfg.Consumer).Scan(&outcome)
	if err != nil {
		c.t.Fatalf("inboxtest: look message %s up: %v", m.ID, err)
	}
	return outcome
}

func describe(m *inbox.Message, r inbox.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "message %s is %v", m.ID, r.Outcome)
	if r.Err != nil {
		fmt.Fprintf(&b, " (%v)", r.Err)
	}
	return b.String()
}
