package orders

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Ship makes one shipment of every order that is checked out. It is the smallest handler
// there is: it writes through the transaction that it is given, and nothing else.
func Ship(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
	if m.Type() != orderCheckedOut {
		return nil // no business of shipping, and settled like any other
	}
	e, err := decode[orderEvent](m)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO shipments (order_id) VALUES ($1)`, e.Order)
	return err
}
