package inbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Level 1: the claim alone, in a transaction of your own.
func ExampleOnce() {
	receive := func(ctx context.Context, pool *pgxpool.Pool, messageID, order string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			first, err := inbox.Once(ctx, tx, "shipping", messageID)
			if err != nil || !first {
				return err // a duplicate is no error: there is nothing left to do
			}
			_, err = tx.Exec(ctx, "INSERT INTO shipment (order_id) VALUES ($1)", order)
			return err
		})
	}
	_ = receive // once it has returned nil, the message's offset may be committed
}

// The same with database/sql.
func ExampleOnceSQL() {
	receive := func(ctx context.Context, db *sql.DB, messageID, order string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
		first, err := inbox.OnceSQL(ctx, tx, "shipping", messageID)
		if err != nil {
			return err
		}
		if first {
			if _, err := tx.ExecContext(ctx, "INSERT INTO shipment (order_id) VALUES ($1)", order); err != nil {
				return err
			}
		}
		return tx.Commit()
	}
	_ = receive
}

// Level 2: a processor, for whoever reads messages in his own way. It opens the
// transaction, counts what fails and puts away what cannot be handled.
func ExampleProcessor() {
	type order struct{ ID string }
	ship := func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
		var o order
		if err := json.Unmarshal(m.Value, &o); err != nil {
			return inbox.Permanent(err) // it will not get better
		}
		_, err := tx.Exec(ctx, "INSERT INTO shipment (order_id) VALUES ($1)", o.ID)
		return err
	}
	consume := func(ctx context.Context, pool *pgxpool.Pool, messages <-chan *inbox.Message, settled func(*inbox.Message)) error {
		p, err := inbox.New(inbox.Config{Consumer: "shipping", Pool: pool, Handler: ship, Logger: slog.Default()})
		if err != nil {
			return err
		}
		if err := p.Check(ctx); err != nil {
			return err
		}
		running := make(chan error, 1)
		go func() { running <- p.Run(ctx) }() // handles replayed and parked messages
		for m := range messages {
			r := p.Process(ctx, m)
			for r.Outcome == inbox.Retry && ctx.Err() == nil {
				select {
				case <-time.After(r.After):
				case <-ctx.Done():
				}
				r = p.Process(ctx, m)
			}
			if r.Outcome == inbox.Retry {
				return ctx.Err() // not settled: its offset stays where it is
			}
			settled(m)
		}
		return <-running
	}
	_ = consume
}

func ExampleRetryAfter() {
	busy := errors.New("the warehouse takes no orders for now")
	err := inbox.RetryAfter(busy, 30*time.Second)
	fmt.Println(err, errors.Is(err, busy))
	// Output: the warehouse takes no orders for now true
}
