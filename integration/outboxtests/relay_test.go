package outboxtests

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// What is written arrives: key, value and headers, once for each event of a committed transaction, in their order.
func TestEventsArrive(t *testing.T) {
	env := newEnv(t)
	topic := env.CreateTopic("order", 1)
	relay := env.StartRelay(testenv.RelayOptions{Args: []string{"--init"}})
	relay.WaitReady(patience)
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))

	undone := begin(t, env)
	_, err := outbox.Insert(ctx, undone, full("undone"))
	must(t, err)
	must(t, undone.Rollback(t.Context()))
	events := make([]outbox.Event, 5)
	for i := range events {
		events[i] = full("42")
		events[i].AggregateVersion = int64(i + 1)
	}
	tx := begin(t, env)
	ids, err := outbox.InsertMany(ctx, tx, events)
	must(t, err)
	must(t, tx.Commit(t.Context()))

	records := env.Consume(topic, len(events), patience)
	if len(records) != len(events) {
		t.Fatalf("%d records, want %d", len(records), len(events))
	}
	for i, r := range records {
		if string(r.Key) != "42" || len(r.Value) == 0 {
			t.Errorf("record %d has key %q and %d bytes", i, r.Key, len(r.Value))
		}
		for name, value := range map[string]string{
			"id": ids[i], "type": "OrderPlaced", "content-type": "application/json", "aggregateversion": fmt.Sprint(i + 1),
			"correlationid": "c-1", "causationid": "c-0", "schemaversion": "2", "tenant": `ac"me <&>`,
			"traceparent": "00-01000000000000000000000000000000-0200000000000000-01",
		} {
			if got, _ := r.Header(name); got != value {
				t.Errorf("record %d has header %s %q, want %q", i, name, got, value)
			}
		}
	}
	if code := relay.Stop(patience); code != 0 {
		t.Errorf("the relay exits with %d", code)
	}
}
