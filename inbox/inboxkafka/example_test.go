package inboxkafka_test

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
)

// A service that ships each order once: its handler writes, Run does the rest. It stops in
// order at SIGTERM.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	p, err := inbox.New(inbox.Config{
		Consumer: "shipping",
		Pool:     pool,
		Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			if m.Type() != "OrderPlaced" {
				return nil // settled, without an effect
			}
			if len(m.Key) == 0 {
				return inbox.Permanent(errors.New("an order without number"))
			}
			_, err := tx.Exec(ctx, "INSERT INTO shipment (order_id) VALUES ($1)", string(m.Key))
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Check(ctx); err != nil {
		log.Fatal(err)
	}
	err = inboxkafka.Run(ctx, inboxkafka.Config{
		Brokers: []string{"localhost:9092"},
		Group:   "shipping",
		Topics:  []string{"outbox.event.order"},
	}, p)
	if err != nil {
		log.Fatal(err)
	}
}
