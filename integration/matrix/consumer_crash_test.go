package matrix_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A consumer that dies before the commit has done nothing, one that dies after it everything; neither has told Kafka. The
// next one is handed the message again.
func crashBeforeCommit(t *testing.T, st *stage) {
	t.Run("before_commit", func(t *testing.T) {
		a := newAudience(t, st)
		a.send(a.events("a", 1, 1)...)
		a.dies(consumer.Options{CrashBefore: 1})
		a.has("shipping")
		a.is("inbox", a.inbox("shipping"), "")
		a.hasNotCommitted("shipping", 0)

		// What happens next: it is handled, once.
		a.succeeds()
		a.has("shipping", "a-1", "a-2")
	})
	t.Run("after_commit", func(t *testing.T) {
		a := newAudience(t, st)
		a.send(a.events("a", 1, 1)...)
		a.dies(consumer.Options{CrashAfter: 1})
		a.has("shipping", "a-1")
		a.is("inbox", a.inbox("shipping"), "a-1=processed")
		a.hasNotCommitted("shipping", 0)

		// What happens next: it is a duplicate.
		l := a.succeeds()
		a.has("shipping", "a-1", "a-2")
		a.is("outcomes", l.outcomes(), "duplicate processed")
		l.quiet()
	})
}

// dies runs the consumer shipping in a process of its own until it kills itself.
func (a *audience) dies(o consumer.Options) {
	a.t.Helper()
	// In its own process the name of the consumer is that of its group, which is shared by all tests.
	o.Name, o.Group, o.URL, o.Brokers, o.Topics, o.Session = "shipping", a.group("shipping"), a.URL, a.Brokers, []string{a.topic}, session
	if code := consumer.Start(a.t, o).Wait(patience); code != -1 {
		a.t.Fatalf("exit code %d, want the end by a signal", code)
	}
	// The server notices that the process is gone, and ends its transaction.
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		n, err := testenv.TextAt(ctx, a.URL, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()`)
		if err == nil && n != "0" {
			err = fmt.Errorf("%s transactions are open", n)
		}
		return err
	})
}

// succeeds runs the consumer shipping in this process until the first event and another one are settled.
func (a *audience) succeeds() *listener {
	a.t.Helper()
	l := a.listen(inbox.Config{Consumer: "shipping"}, inboxkafka.Config{})
	a.settled("shipping", "a-1=processed")
	a.send(a.events("a", 2, 2)...)
	a.settled("shipping", "a-1=processed a-2=processed")
	a.hasCommitted("shipping", 2)
	return l
}

// The effect and the row of the inbox come from one transaction: what keeps the one from being written keeps the other.
func effectAndInboxRow(t *testing.T, st *stage) {
	for name, table := range map[string]string{"effect_cannot_commit": "effect", "inbox_row_cannot_commit": "cdc_relay_inbox"} {
		t.Run(name, func(t *testing.T) {
			a := newAudience(t, st)
			a.Exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN RAISE EXCEPTION 'not now'; END $$`)
			// Deferred: the statements succeed, and the commit fails.
			a.Exec(`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON public.` + table + `
				DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
			l := a.listen(inbox.Config{Consumer: "shipping", MaxDeliveries: 1000}, inboxkafka.Config{})
			a.send(a.events("a", 1, 1)...)
			a.becomes("failed twice", func() string { return a.Text(`SELECT bool_and(attempts > 1) FROM public.cdc_relay_inbox_attempt`) }, "true")
			a.has("shipping")
			a.is("inbox", a.inbox("shipping"), "")
			a.hasNotCommitted("shipping", 0)

			// What happens next: both are there as soon as both can be.
			a.Exec(`DROP TRIGGER refuse ON public.` + table)
			a.settled("shipping", "a-1=processed")
			a.has("shipping", "a-1")
			a.is("attempts", a.attempts("shipping"), "")
			a.is("transactions", a.Text(`SELECT count(DISTINCT x) FROM (SELECT xmin::text FROM public.effect
				UNION ALL SELECT xmin::text FROM public.cdc_relay_inbox) AS t (x)`), "1")
			a.hasCommitted("shipping", 1)
			l.end()
		})
	}
	t.Run("handler_fails_after_its_effect", func(t *testing.T) {
		a := newAudience(t, st)
		write := effect("shipping")
		l := a.processor(inbox.Config{Consumer: "shipping", MaxDeliveries: 2, Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			return errors.Join(write(ctx, tx, m), errors.New("no"))
		}})
		m := &inbox.Message{ID: "a-1", Topic: a.topic, Key: []byte("a"), Value: []byte(event(1))}
		if r := l.p.Process(t.Context(), m); r.Outcome != inbox.Retry || r.Attempts != 1 {
			t.Errorf("got %+v, want a retry after one attempt", r)
		}
		a.has("shipping")
		a.is("inbox", a.inbox("shipping"), "")
		if r := l.p.Process(t.Context(), m); r.Outcome != inbox.DeadLettered {
			t.Errorf("got %+v, want a dead letter", r)
		}
		a.has("shipping")
		a.is("transactions", a.Text(`SELECT count(DISTINCT x) FROM (SELECT xmin::text FROM public.cdc_relay_inbox_letter
			UNION ALL SELECT xmin::text FROM public.cdc_relay_inbox) AS t (x)`), "1")
	})
}
