package orders

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Audit writes down every change of the inventory, in a table that nobody can change
// (fulfilment.sql). A trail with a hole is worth nothing, so this consumer goes by the
// version of each item: one that comes too early waits until those before it are there, and
// one that is already written down is dropped (see [Consumers]).
func Audit(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
	e, err := decode[stockEvent](m)
	if err != nil {
		return err
	}
	version, found := m.Version()
	if !found {
		return inbox.Permanent(errors.New("the message has no header aggregateversion"))
	}
	var order *string // NULL for what came in
	if e.Order != "" {
		order = &e.Order
	}
	_, err = tx.Exec(ctx, `INSERT INTO stock_audit (item, version, change, pieces, order_id) VALUES ($1, $2, $3, $4, $5)`,
		e.Item, version, e.Change, e.Pieces, order)
	return err
}
