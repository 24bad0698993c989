// Package orders is an example of cdc-relay from end to end, small enough to be read in ten
// minutes and copied: an order service that writes its events into the outbox, in the
// transaction of the change (shop.go), and three consumers whose effects happen exactly once
// (shipping.go, billing.go, audit.go; consumers.go runs them). Command
// examples/orders/cmd/orders runs each part as a process; the demo (cmd/cdc-relay-demo) kills
// them and compares both ends (check.go).
package orders

import (
	"context"
	_ "embed" // for the two scripts
	"fmt"

	"github.com/jackc/pgx/v5"
)

//go:embed shop.sql
var shopSchema string

//go:embed fulfilment.sql
var fulfilmentSchema string

// SetUpShop creates the order service's tables in its database, where they are missing.
func SetUpShop(ctx context.Context, url string) error { return setUp(ctx, url, shopSchema) }

// SetUpFulfilment creates the consumers' tables in theirs, where they are missing.
func SetUpFulfilment(ctx context.Context, url string) error { return setUp(ctx, url, fulfilmentSchema) }

func setUp(ctx context.Context, url, script string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, script); err != nil {
		return fmt.Errorf("create tables: %w", err)
	}
	return nil
}
