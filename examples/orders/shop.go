package orders

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The kinds of things that events are about. Each has a topic of its own, and the thing's
// name is the record key, so that its events stay in order.
const (
	orderAggregate = "order"
	stockAggregate = "stock"

	OrderTopic = "outbox.event." + orderAggregate
	StockTopic = "outbox.event." + stockAggregate
)

// The events, and what their payloads hold: a contract between the services, so it is
// written down once. Fields may be added, and are never renamed.
const (
	itemAdded       = "ItemAdded"
	orderCheckedOut = "OrderCheckedOut"
	stockReceived   = "StockReceived"
	stockTaken      = "StockTaken"
)

type orderEvent struct {
	Order string `json:"order"`
	Item  string `json:"item,omitempty"`  // ItemAdded
	Cents int64  `json:"cents,omitempty"` // ItemAdded: of these pieces; OrderCheckedOut: of the whole order
}

type stockEvent struct {
	Item   string `json:"item"`
	Change int64  `json:"change"`
	Pieces int64  `json:"pieces"` // after the change
	Order  string `json:"order,omitempty"`
}

// What the service refuses. The caller rolls back, and there is no event either.
var (
	ErrCheckedOut = errors.New("the order is checked out")
	ErrOutOfStock = errors.New("there are not so many pieces in stock")
)

// Receive puts pieces of an item into stock, within the caller's transaction. It returns the
// id of the event.
func Receive(ctx context.Context, tx pgx.Tx, item string, pieces int64) (string, error) {
	return changeStock(ctx, tx, stockReceived, stockEvent{Item: item, Change: pieces}, `
		INSERT INTO stock AS s (item, version, pieces) VALUES ($1, 1, $2)
		ON CONFLICT (item) DO UPDATE SET version = s.version + 1, pieces = s.pieces + excluded.pieces
		RETURNING version, pieces`)
}

// Add puts pieces of an item into an order, within the caller's transaction, and opens the
// order if it is new. It returns the ids of the events.
//
// This is all that writing takes: the rows of the application and the rows of the outbox
// are in one transaction, so that there is an event exactly when there is a change.
func Add(ctx context.Context, tx pgx.Tx, order, item string, pieces, cents int64) ([]string, error) {
	var version int64
	err := tx.QueryRow(ctx, `
		INSERT INTO orders AS o (id, version, total_cents) VALUES ($1, 1, $2)
		ON CONFLICT (id) DO UPDATE SET version = o.version + 1, total_cents = o.total_cents + excluded.total_cents
		 WHERE NOT o.checked_out
		RETURNING version`, order, cents).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrCheckedOut
	}
	if err != nil {
		return nil, fmt.Errorf("change order: %w", err)
	}
	added, err := outbox.Insert(ctx, tx, outbox.Event{
		AggregateType: orderAggregate, AggregateID: order, AggregateVersion: version, Type: itemAdded,
		Payload: encode(orderEvent{Order: order, Item: item, Cents: cents}),
	})
	if err != nil {
		return nil, err
	}
	taken, err := changeStock(ctx, tx, stockTaken, stockEvent{Item: item, Change: -pieces, Order: order}, `
		UPDATE stock SET version = version + 1, pieces = pieces + $2 WHERE item = $1 AND pieces + $2 >= 0
		RETURNING version, pieces`)
	return []string{added, taken}, err
}

// CheckOut closes an order, which is the moment to ship it. It returns the id of the event.
func CheckOut(ctx context.Context, tx pgx.Tx, order string) (string, error) {
	var version, total int64
	err := tx.QueryRow(ctx, `
		UPDATE orders SET checked_out = true, version = version + 1 WHERE id = $1 AND NOT checked_out
		RETURNING version, total_cents`, order).Scan(&version, &total)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrCheckedOut
	}
	if err != nil {
		return "", fmt.Errorf("check order out: %w", err)
	}
	return outbox.Insert(ctx, tx, outbox.Event{
		AggregateType: orderAggregate, AggregateID: order, AggregateVersion: version, Type: orderCheckedOut,
		Payload: encode(orderEvent{Order: order, Cents: total}),
	})
}

// changeStock writes the change and the event about it. The statement locks the item's row until
// the commit, so that versions are committed in their order, which the audit relies on.
func changeStock(ctx context.Context, tx pgx.Tx, kind string, e stockEvent, statement string) (string, error) {
	var version int64
	err := tx.QueryRow(ctx, statement, e.Item, e.Change).Scan(&version, &e.Pieces)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrOutOfStock
	}
	if err != nil {
		return "", fmt.Errorf("change stock: %w", err)
	}
	return outbox.Insert(ctx, tx, outbox.Event{
		AggregateType: stockAggregate, AggregateID: e.Item, AggregateVersion: version, Type: kind, Payload: encode(e),
	})
}
