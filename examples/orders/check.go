package orders

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Report compares what the order service has committed with what the consumers have done.
type Report struct {
	CheckedOut   int // orders that are to be shipped
	Shipped      int // of these, those with exactly one shipment
	Orders       int // all orders
	Billed       int // of these, those whose invoice is right
	StockChanges int // events about the inventory
	Audited      int // of these, those with exactly one line of the audit
	DeadLetters  int // messages that a consumer could not handle, or that wait behind one

	Wrong []string // effects that no order explains, or that there are too many of; a few of them
}

// OK reports that every effect has happened exactly once.
func (r Report) OK() bool { return r.Done() && len(r.Wrong) == 0 }

// Done reports that nothing is missing.
func (r Report) Done() bool {
	return r.Shipped == r.CheckedOut && r.Billed == r.Orders && r.Audited == r.StockChanges && r.DeadLetters == 0
}

func (r *Report) wrong(format string, args ...any) {
	if len(r.Wrong) < 5 {
		r.Wrong = append(r.Wrong, fmt.Sprintf(format, args...))
	}
}

// order is what both databases know of one order.
type order struct {
	CheckedOut bool
	Cents      int64
	Shipments  int
}

// Check makes the report. The two databases have no common snapshot, so it is right when
// nothing is being committed any more.
func Check(ctx context.Context, shop, fulfilment *pgxpool.Pool) (Report, error) {
	var r Report
	if err := r.checkOrders(ctx, shop, fulfilment); err != nil {
		return r, fmt.Errorf("check orders: %w", err)
	}
	if err := r.checkStock(ctx, shop, fulfilment); err != nil {
		return r, fmt.Errorf("check stock: %w", err)
	}
	err := fulfilment.QueryRow(ctx, `
		SELECT count(*) FROM public.cdc_relay_inbox_letter WHERE state IN ('dead', 'due', 'parked')`).Scan(&r.DeadLetters)
	if err != nil {
		return r, fmt.Errorf("count dead letters: %w", err)
	}
	return r, nil
}

func (r *Report) checkOrders(ctx context.Context, shop, fulfilment *pgxpool.Pool) error {
	committed, err := collect(ctx, shop, `SELECT id, checked_out, total_cents, 0 FROM orders`)
	if err != nil {
		return err
	}
	done, err := collect(ctx, fulfilment, `
		SELECT order_id, coalesce(i.sent, false), coalesce(i.cents, 0), coalesce(s.n, 0)
		  FROM invoices i
		  FULL JOIN (SELECT order_id, count(*) AS n FROM shipments GROUP BY order_id) s USING (order_id)`)
	if err != nil {
		return err
	}
	for id, want := range committed {
		got := done[id]
		r.Orders++
		if want.CheckedOut {
			r.CheckedOut++
		}
		switch {
		case got.Shipments > 1 || got.Shipments == 1 && !want.CheckedOut:
			r.wrong("order %s has %d shipments", id, got.Shipments)
		case got.Shipments == 1:
			r.Shipped++
		}
		switch {
		case got.Cents > want.Cents:
			r.wrong("order %s costs %d cents and is billed with %d", id, want.Cents, got.Cents)
		case got.Cents == want.Cents && got.CheckedOut == want.CheckedOut:
			r.Billed++
		}
	}
	for id := range done {
		if _, found := committed[id]; !found {
			r.wrong("order %s has effects and does not exist", id)
		}
	}
	return nil
}

func collect(ctx context.Context, pool *pgxpool.Pool, sql string) (map[string]order, error) {
	rows, err := pool.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	all := map[string]order{}
	var (
		id string
		o  order
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &o.CheckedOut, &o.Cents, &o.Shipments}, func() error {
		all[id] = o
		return nil
	})
	return all, err
}

// checkStock adds the audit up again: each item's lines must be its versions 1, 2, 3, … in
// the order in which they were written, and lead from one number of pieces to the next.
func (r *Report) checkStock(ctx context.Context, shop, fulfilment *pgxpool.Pool) error {
	if err := shop.QueryRow(ctx, `SELECT coalesce(sum(version), 0) FROM stock`).Scan(&r.StockChanges); err != nil {
		return err
	}
	rows, err := fulfilment.Query(ctx, `SELECT item, version, change, pieces FROM stock_audit ORDER BY id`)
	if err != nil {
		return err
	}
	type level struct{ version, pieces int64 }
	var (
		items                   = map[string]level{}
		item                    string
		version, change, pieces int64
	)
	_, err = pgx.ForEachRow(rows, []any{&item, &version, &change, &pieces}, func() error {
		was := items[item]
		if version != was.version+1 || pieces != was.pieces+change {
			r.wrong("the audit of %s goes from version %d with %d pieces to version %d with %d by %d",
				item, was.version, was.pieces, version, pieces, change)
		}
		items[item] = level{version: version, pieces: pieces}
		r.Audited++
		return nil
	})
	return err
}
