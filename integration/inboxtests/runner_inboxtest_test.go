package inboxtests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxtest"
)

// A handler that is right passes every injection.
func TestInboxtestPassesAHandlerThatUsesItsTransaction(t *testing.T) {
	r := newRunnerRig(t)
	c := inboxtest.New(t, r.pool, r.handle)
	once := "SELECT count(*) FROM effect WHERE message_id = $1"
	m := inboxtest.Message("orders", "a", []byte("1"))
	c.CrashBeforeCommit(m)
	if got := r.effects(); got != "" {
		t.Fatalf("effects %q of a transaction that was lost", got)
	}
	c.DeliverConcurrently(20, m)
	c.DeliverTwice(m)
	c.RequireProcessedOnce(m, once, m.ID)

	m = inboxtest.Message("orders", "a", []byte("2"))
	c.CrashAfterCommit(m)
	if got := c.Deliver(m); got.Outcome != inbox.Duplicate {
		t.Errorf("after the commit the message is %v, want a duplicate", got.Outcome)
	}
	c.RequireProcessedOnce(m, once, m.ID)

	var many []*inbox.Message
	for i := range 10 {
		many = append(many, inboxtest.Message("orders", "b", []byte(strconv.Itoa(i))))
	}
	c.Rewound(1, many...)
	for _, m := range many {
		c.RequireProcessedOnce(m, once, m.ID)
	}
}

func TestInboxtestShufflesWhatTheSequencePutsInOrder(t *testing.T) {
	r := newRunnerRig(t)
	c := inboxtest.New(t, r.pool, r.handle, inboxtest.WithConfig(byVersion))
	var messages []*inbox.Message
	var want []string
	for i := range 10 {
		m := inboxtest.Message("orders", "a", []byte("x"), inbox.Header{Name: "aggregateversion", Value: []byte(strconv.Itoa(i + 1))})
		messages = append(messages, m)
		want = append(want, m.ID)
	}
	c.Shuffled(1, messages...)
	c.RunParked()
	r.wantEffects(strings.Join(want, " "))
}

// failing is a test that may fail without failing the one that looks.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure runs a test and returns what it failed with.
func failure(t *testing.T, test func(testing.TB)) string {
	t.Helper()
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(f)
	}()
	<-done
	return f.text
}

// Handlers that are wrong fail, each by the injection that is meant for it.
func TestInboxtestFindsHandlersThatAreWrong(t *testing.T) {
	r := newRunnerRig(t)
	const once = "SELECT count(*) FROM effect WHERE message_id = $1"
	outside := func(ctx context.Context, _ pgx.Tx, m *inbox.Message) error { // not in its transaction
		_, err := r.pool.Exec(ctx, "INSERT INTO effect (message_id, consumer) VALUES ($1, 'x')", m.ID)
		return err
	}
	nothing := func(context.Context, pgx.Tx, *inbox.Message) error { return nil }
	broken := func(context.Context, pgx.Tx, *inbox.Message) error { return inbox.Permanent(errors.New("broken")) }
	for _, test := range []struct {
		name    string
		handler inbox.Handler
		deliver func(*inboxtest.Consumer, *inbox.Message)
		want    string
	}{
		{"outside", outside, func(c *inboxtest.Consumer, m *inbox.Message) {
			c.CrashBeforeCommit(m)
			c.DeliverTwice(m)
		}, "has its effect 2 times"},
		{"nothing", nothing, func(c *inboxtest.Consumer, m *inbox.Message) { c.DeliverTwice(m) }, "has its effect 0 times"},
		{"broken", broken, func(c *inboxtest.Consumer, m *inbox.Message) { c.DeliverTwice(m) }, "is dead, not processed"},
		{"crash", broken, func(c *inboxtest.Consumer, m *inbox.Message) { c.CrashBeforeCommit(m) }, "without getting to the end of the handler"},
		{"unsettled", nothing, func(*inboxtest.Consumer, *inbox.Message) {}, "is not settled, not processed"},
	} {
		got := failure(t, func(tb testing.TB) {
			c := inboxtest.New(tb, r.pool, test.handler, inboxtest.WithConsumer(test.name))
			m := inboxtest.Message("orders", "a", []byte("x"))
			test.deliver(c, m)
			c.RequireProcessedOnce(m, once, m.ID)
		})
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: failed with %q, want %q", test.name, got, test.want)
		}
	}
}

func TestInboxtestSaysWhatTheDatabaseLacks(t *testing.T) {
	r := newRunnerRig(t)
	r.Exec("DROP TABLE public.cdc_relay_inbox_letter")
	got := failure(t, func(tb testing.TB) { inboxtest.New(tb, r.pool, r.handle) })
	if !strings.Contains(got, "migrate") {
		t.Errorf("without a table New says %q, want the command that makes it", got)
	}
}
