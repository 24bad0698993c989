package matrix_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Twenty copies of a message are handled in the same moment, a thousand times: one has the effect, the others are told
// that they are duplicates, and nobody has anything to complain of.
func sameMessageTwice(t *testing.T, st *stage) {
	const rounds, copies = 1000, 20
	a := newAudience(t, st)
	a.Exec(`CREATE TABLE public.counter (n bigint NOT NULL)`)
	a.Exec(`INSERT INTO public.counter VALUES (0)`)
	l := a.processor(inbox.Config{Consumer: "shipping", Handler: func(ctx context.Context, tx pgx.Tx, _ *inbox.Message) error {
		_, err := tx.Exec(ctx, `UPDATE public.counter SET n = n + 1`)
		return err
	}})
	for round := 1; round <= rounds; round++ {
		m := &inbox.Message{ID: fmt.Sprint(round), Topic: a.topic, Key: []byte("a"), Value: []byte(event(round))}
		var all sync.WaitGroup
		var results [copies]inbox.Result
		start := make(chan struct{})
		for i := range copies {
			all.Go(func() {
				<-start
				results[i] = l.p.Process(t.Context(), m)
			})
		}
		close(start)
		all.Wait()
		processed := 0
		for _, r := range results {
			if r.Outcome == inbox.Processed {
				processed++
			} else if r.Outcome != inbox.Duplicate {
				t.Fatalf("round %d: got %+v", round, r)
			}
			if r.Err != nil {
				t.Fatalf("round %d: %v is %v", round, r.Outcome, r.Err)
			}
		}
		if processed != 1 {
			t.Fatalf("round %d: %d copies were the first", round, processed)
		}
	}
	a.is("effects", a.Text(`SELECT n FROM public.counter`), fmt.Sprint(rounds))
	a.is("rows of the inbox", a.Text(`SELECT count(*) FROM public.cdc_relay_inbox WHERE outcome = 'processed'`), fmt.Sprint(rounds))
	a.is("attempts", a.attempts("shipping"), "")
	if log := l.log.String(); log != "" {
		t.Errorf("logged: %s", log)
	}

	// What happens next: a late copy is a duplicate, too.
	if r := l.p.Process(t.Context(), &inbox.Message{ID: "1", Topic: a.topic, Key: []byte("a")}); r.Outcome != inbox.Duplicate {
		t.Errorf("got %+v, want a duplicate", r)
	}
}

// A message that no handler can make sense of is handled as often as it is told, and then is a dead letter that keeps it
// whole. It is settled; what came before and other keys are not touched.
func poisonMessage(t *testing.T, st *stage) {
	a := newAudience(t, st)
	var calls atomic.Int64
	var mended atomic.Bool
	write := effect("shipping")
	l := a.listen(inbox.Config{
		Consumer: "shipping", MaxDeliveries: 3,
		Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			if string(m.Value) == "not json" {
				calls.Add(1)
				if mended.Load() {
					m = &inbox.Message{ID: m.ID, Key: m.Key, Value: []byte(event(2))}
				}
			}
			return write(ctx, tx, m)
		},
	}, inboxkafka.Config{})
	a.send(a.events("a", 1, 1)...)
	a.send(a.record("poison", "a", "not json", "type", "Placed"), a.record("b-1", "b", event(1)))
	a.settled("shipping", "a-1=processed b-1=processed poison=dead")
	a.hasCommitted("shipping", 3)
	a.is("letters", a.letters("shipping"), "poison:dead:max_deliveries:3")
	a.is("attempts", a.attempts("shipping"), "")
	if n := calls.Load(); n != 3 {
		t.Errorf("the handler was called %d times, want 3", n)
	}
	if got := a.effects("shipping"); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"a-1", "b-1"}) {
		t.Errorf("the effects are %q", got)
	}
	a.is("letter", a.Text(`SELECT concat_ws(' ', topic = $1, partition, record_offset, convert_from(record_key, 'UTF8'),
		convert_from(value, 'UTF8'), convert_from(header_names[2], 'UTF8'), convert_from(header_values[2], 'UTF8'), type, error)
		FROM public.cdc_relay_inbox_letter`, a.topic), "t 0 1 a not json type Placed Placed the payload is no event")
	if strings.Contains(l.log.String(), "not json") {
		t.Errorf("the log has the payload: %s", l.log)
	}

	// What happens next: nothing, until somebody has mended the handler and replays it; to replay it again changes nothing.
	mended.Store(true)
	a.is("replayed", a.replay("shipping"), "1")
	a.settled("shipping", "a-1=processed b-1=processed poison=processed")
	a.becomes("letters", func() string { return a.Text(`SELECT state || replays FROM public.cdc_relay_inbox_letter`) }, "processed1")
	a.is("replayed again", a.replay("shipping"), "0")
	a.send(a.record("poison", "a", "not json"), a.record("a-3", "a", event(3)))
	a.settled("shipping", "a-1=processed a-3=processed b-1=processed poison=processed")
	if n := calls.Load(); n != 4 {
		t.Errorf("the handler was called %d times, want 4", n)
	}
	l.end()
}

// A failure that passes costs a message a second delivery, and its key a pause. Nothing of it stays.
func transientFailure(t *testing.T, st *stage) {
	a := newAudience(t, st)
	var calls atomic.Int64
	failed := make(chan struct{})
	write := effect("shipping")
	l := a.listen(inbox.Config{
		// The pause is long enough to be looked at.
		Consumer: "shipping", Backoff: inbox.Backoff{Initial: time.Second, Max: time.Second},
		Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			if err := write(ctx, tx, m); err != nil || m.ID != "a-1" {
				return err
			}
			if calls.Add(1) == 1 {
				defer close(failed)
				return errors.New("the warehouse does not answer")
			}
			return nil
		},
	}, inboxkafka.Config{})
	a.send(a.events("a", 1, 2)...)
	<-failed
	a.becomes("attempts", func() string {
		return a.Text(`SELECT message_id || ' ' || attempts || ' ' || error FROM public.cdc_relay_inbox_attempt`)
	}, "a-1 1 the warehouse does not answer")

	// What happens next: it is delivered again, before the key's next message.
	a.gets("shipping", "a-1", "a-2")
	a.settled("shipping", "a-1=processed a-2=processed")
	a.hasCommitted("shipping", 2)
	a.is("attempts", a.attempts("shipping"), "")
	a.is("letters", a.letters("shipping"), "")
	if n := calls.Load(); n != 2 {
		t.Errorf("the handler was called %d times, want 2", n)
	}
	l.end()
	a.is("outcomes", l.outcomes(), "retry processed processed")
}

// Two consumers have the same database and the same topic: each has each effect, and each remembers for itself.
func twoConsumers(t *testing.T, st *stage) {
	a := newAudience(t, st)
	names := []string{"billing", "shipping"}
	for _, name := range names {
		a.listen(inbox.Config{Consumer: name}, inboxkafka.Config{})
	}
	a.send(a.events("a", 1, 3)...)
	a.send(a.events("a", 1, 3)...) // And a second copy of each.
	for _, name := range names {
		a.hasCommitted(name, 6)
		a.has(name, "a-1", "a-2", "a-3")
		a.is("inbox", a.inbox(name), "a-1=processed a-2=processed a-3=processed")
	}

	// What happens next: a third one, which comes late, begins at the beginning and troubles nobody.
	l := a.listen(inbox.Config{Consumer: "audit"}, inboxkafka.Config{})
	a.hasCommitted("audit", 6)
	a.has("audit", "a-1", "a-2", "a-3")
	a.is("outcomes", l.outcomes(), "processed processed processed duplicate duplicate duplicate")
	for _, name := range names {
		a.has(name, "a-1", "a-2", "a-3")
	}
}

// A consumer that is slow shows how many records wait and since when, and holds no more than it was allowed to.
func slowConsumer(t *testing.T, st *stage) {
	const records, most = 500, 20
	a := newAudience(t, st)
	gate, handling := make(chan struct{}), make(chan struct{}, records)
	write := effect("shipping")
	l := a.listen(inbox.Config{Consumer: "shipping", Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
		handling <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
		return write(ctx, tx, m)
	}}, inboxkafka.Config{MaxInFlight: most, Concurrency: 1})
	a.send(a.events("a", 1, records)...)
	first := a.Consume(a.topic, 1, patience)[0].Time
	<-handling
	shows := func(want backlog) {
		t.Helper()
		testenv.Until(t, patience, func(context.Context) error {
			if got := l.lastBacklog(); got.lag != want.lag || !got.oldest.Equal(want.oldest) {
				return fmt.Errorf("the backlog is %v since %v, want %v since %v", got.lag, got.oldest, want.lag, want.oldest)
			}
			return nil
		})
	}
	shows(backlog{records, first})
	a.has("shipping")
	a.hasNotCommitted("shipping", 0)

	// What happens next: it goes on, and the backlog is gone.
	close(gate)
	a.hasCommitted("shipping", records)
	shows(backlog{})
	if n := len(a.effects("shipping")); n != records {
		t.Errorf("%d effects, want %d", n, records)
	}
	l.end()
}
