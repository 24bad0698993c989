package outbox_test

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The order and the event that tells of it are committed together, or not at all.
func ExampleInsert() {
	placeOrder := func(ctx context.Context, pool *pgxpool.Pool, number string, cents int64) error {
		payload, err := json.Marshal(map[string]any{"number": number, "cents": cents})
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders (number, cents) VALUES ($1, $2)", number, cents); err != nil {
				return err
			}
			_, err := outbox.Insert(ctx, tx, outbox.Event{
				AggregateType: "order", // Names the topic.
				AggregateID:   number,  // The record's key: events of one order keep their order.
				Type:          "OrderPlaced",
				Payload:       payload,
			})
			return err
		})
	}
	_ = placeOrder
}

// A table of one's own, where some columns have other names and some are not there.
func ExampleNew() {
	writer, err := outbox.New(outbox.Config{
		Table:   "sales.events",
		Columns: map[string]string{"id": "event_id", "payload": "body", "schemaversion": ""},
	})
	if err != nil {
		return
	}
	_ = func(ctx context.Context, tx pgx.Tx, e outbox.Event) error {
		_, err := writer.Insert(ctx, tx, e)
		return err
	}
}
