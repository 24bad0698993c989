package matrix_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Versions that come out of order wait for the one that is missing, in the database and not in the way of others.
func outOfOrderVersions(t *testing.T, st *stage) {
	a := newAudience(t, st)
	version := func(id, key string, n int) {
		a.send(a.record(id, key, event(n), "aggregateversion", fmt.Sprint(n)))
	}
	l := a.listen(inbox.Config{Consumer: "shipping", Sequence: inbox.Sequence{Mode: inbox.ByVersion}}, inboxkafka.Config{})
	version("a-2", "a", 2)
	version("a-4", "a", 4)
	version("a-3", "a", 3)
	version("b-1", "b", 1)
	a.settled("shipping", "a-2=parked a-3=parked a-4=parked b-1=processed")
	a.has("shipping", "b-1")
	a.is("letters", a.letters("shipping"), "a-2:parked:gap:0 a-4:parked:gap:0 a-3:parked:gap:0")
	a.hasCommitted("shipping", 4)

	// What happens next: the missing one comes, and they follow it in their order.
	version("a-1", "a", 1)
	a.gets("shipping", "b-1", "a-1", "a-2", "a-3", "a-4")
	a.settled("shipping", "a-1=processed a-2=processed a-3=processed a-4=processed b-1=processed")
	a.is("letters", a.letters("shipping"), "a-2:processed:gap:0 a-4:processed:gap:0 a-3:processed:gap:0")

	// A version that was there before is stale, whatever its id, and the next one is handled at once.
	version("a-2-again", "a", 2)
	version("a-5", "a", 5)
	a.gets("shipping", "b-1", "a-1", "a-2", "a-3", "a-4", "a-5")
	a.is("stale", a.Text(`SELECT outcome FROM public.cdc_relay_inbox WHERE message_id = 'a-2-again'`), "stale")
	a.is("sequence", a.Text(`SELECT string_agg(version::text, ' ' ORDER BY version) FROM public.cdc_relay_inbox_sequence`), "1 5")
	l.end()
}

// One key cannot be handled. Its later messages wait for it, in the database or in Kafka as the consumer is told, or go
// on without it; other keys flow in any case.
func oneKeyBlocked(t *testing.T, st *stage) {
	for name, order := range map[string]inbox.Order{"park": inbox.Park, "block": inbox.Block, "skip": inbox.Skip} {
		t.Run(name, func(t *testing.T) {
			a := newAudience(t, st)
			var mended atomic.Bool
			write := effect("shipping")
			l := a.listen(inbox.Config{
				Consumer: "shipping", MaxDeliveries: 2, Order: order,
				Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
					if m.ID == "a-2" && !mended.Load() {
						return errors.New("no such order")
					}
					return write(ctx, tx, m)
				},
			}, inboxkafka.Config{})
			a.send(a.events("a", 1, 4)...)
			a.send(a.events("b", 1, 3)...)
			a.keyIsBlocked(order)

			// What happens next.
			mended.Store(true)
			a.keyGoesOn(order)
			l.end()
		})
	}
}

// keyIsBlocked is the state that is left by a-2, which fails, of four messages of a, and three of b behind them.
func (a *audience) keyIsBlocked(order inbox.Order) {
	a.t.Helper()
	const b = " b-1=processed b-2=processed b-3=processed"
	switch order {
	case inbox.Park:
		a.settled("shipping", "a-1=processed a-2=dead a-3=parked a-4=parked"+b)
		a.is("letters", a.letters("shipping"), "a-2:dead:max_deliveries:2 a-3:parked:behind:0 a-4:parked:behind:0")
		a.hasCommitted("shipping", 7)
		a.hasByKey("a-1", "b-1 b-2 b-3")
	case inbox.Skip:
		a.settled("shipping", "a-1=processed a-2=dead a-3=processed a-4=processed"+b)
		a.is("letters", a.letters("shipping"), "a-2:dead:max_deliveries:2")
		a.hasCommitted("shipping", 7)
		a.hasByKey("a-1 a-3 a-4", "b-1 b-2 b-3")
	case inbox.Block:
		a.settled("shipping", "a-1=processed"+b)
		a.becomes("tried on", func() string {
			return a.Text(`SELECT message_id FROM public.cdc_relay_inbox_attempt WHERE attempts > 2`)
		}, "a-2")
		a.is("letters", a.letters("shipping"), "")
		a.hasCommitted("shipping", 1)
		a.hasByKey("a-1", "b-1 b-2 b-3")
	}
}

// keyGoesOn is what happens when a-2 can be handled.
func (a *audience) keyGoesOn(order inbox.Order) {
	a.t.Helper()
	want := "a-1 a-2 a-3 a-4"
	switch order {
	case inbox.Park:
		a.is("replayed", a.replay("shipping"), "1")
	case inbox.Skip:
		a.is("replayed", a.replay("shipping"), "1")
		want = "a-1 a-3 a-4 a-2" // A replay comes behind what the key has done since.
	case inbox.Block:
	}
	a.settled("shipping", "a-1=processed a-2=processed a-3=processed a-4=processed b-1=processed b-2=processed b-3=processed")
	a.hasByKey(want, "b-1 b-2 b-3")
	a.is("attempts", a.attempts("shipping"), "")
	a.hasCommitted("shipping", 7)
}

// hasByKey checks the effects of the consumer shipping, each key for itself.
func (a *audience) hasByKey(want ...string) {
	a.t.Helper()
	byKey := map[string][]string{}
	for _, e := range a.effects("shipping") {
		byKey[e[:1]] = append(byKey[e[:1]], e)
	}
	var got []string
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		got = append(got, strings.Join(byKey[key], " "))
	}
	if !slices.Equal(got, want) {
		a.t.Errorf("the effects are %q, want %q", got, want)
	}
}

// Two relays read one table, each through a slot of its own, and write to one topic: every event comes twice, under one
// id, and has one effect.
func twoRelays(t *testing.T, st *stage) {
	const events, keys = 1000, 10
	a := newAudience(t, st)
	var relays []*testenv.Relay
	for _, slot := range []string{a.Slot, a.Slot + "_second"} {
		relays = append(relays, a.Start(testenv.Settings{"postgres.slot": slot}))
	}
	l := a.listen(inbox.Config{Consumer: "shipping"}, inboxkafka.Config{})
	committed := map[string]int64{}
	for i := range events / keys {
		for k := range keys {
			key := fmt.Sprint("key", k)
			committed[key]++
			if _, err := a.conn.Exec(t.Context(), `INSERT INTO public.outbox (aggregatetype, aggregateid, payload) VALUES ('order', $1, $2)`,
				key, event(i+1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	a.hasCommitted("shipping", 2*events)
	if n := a.Count(a.topic); n != 2*events {
		t.Errorf("the topic holds %d records, want each of %d events twice", n, events)
	}
	got, err := consumer.Effects(t.Context(), a.conn, "shipping")
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.Judge(got, committed); err != nil {
		t.Error(err)
	}
	a.is("inbox", a.Text(`SELECT count(*) || ' ' || count(*) FILTER (WHERE outcome = 'processed') FROM public.cdc_relay_inbox`),
		fmt.Sprintf("%d %d", events, events))
	if n := strings.Count(l.outcomes(), "duplicate"); n != events {
		t.Errorf("%d deliveries were duplicates, want %d", n, events)
	}
	l.quiet()

	// What happens next: one relay goes, and the other goes on.
	a.Stop(relays[0])
	a.Insert("order", "key0", event(events/keys+1))
	a.hasCommitted("shipping", 2*events+1)
	a.is("effects", a.Text(`SELECT count(*) FROM public.effect`), fmt.Sprint(events+1))
	l.end()
}
