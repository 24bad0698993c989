package orders

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Bill adds up what is in an order, and sends the invoice when the order is checked out.
// Adding is the kind of effect that a second delivery would spoil, and the sum at the end is
// only right when the order's events came in their order: each key has one.
func Bill(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
	e, err := decode[orderEvent](m)
	if err != nil {
		return err
	}
	switch m.Type() {
	case itemAdded:
		_, err = tx.Exec(ctx, `
			INSERT INTO invoices AS i (order_id, cents) VALUES ($1, $2)
			ON CONFLICT (order_id) DO UPDATE SET cents = i.cents + excluded.cents`, e.Order, e.Cents)
		return err
	case orderCheckedOut:
		return send(ctx, tx, e)
	default:
		return nil
	}
}

// send refuses an invoice that does not add up. No further try would help, so the message is
// a dead letter at once, and what else comes about this order waits behind it; the other
// orders go on.
func send(ctx context.Context, tx pgx.Tx, e orderEvent) error {
	done, err := tx.Exec(ctx, `UPDATE invoices SET sent = true WHERE order_id = $1 AND cents = $2`, e.Order, e.Cents)
	if err == nil && done.RowsAffected() == 0 {
		err = inbox.Permanent(errors.New("the items do not add up to the total of the order"))
	}
	return err
}
