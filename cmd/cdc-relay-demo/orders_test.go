package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/examples/orders"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxtest"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// The example's own code, on the two databases that it has in the demo.
func TestExample(t *testing.T) {
	t.Parallel()
	shop, fulfilment := databases(t)
	t.Run("shipping", func(t *testing.T) { testShipping(t, fulfilment) })
	t.Run("billing", func(t *testing.T) { testBilling(t, fulfilment) })
	t.Run("audit", func(t *testing.T) { testAudit(t, fulfilment) })
	mustExec(t, fulfilment, `DROP TRIGGER append_only ON stock_audit; TRUNCATE shipments, invoices, stock_audit`)
	if err := orders.SetUpFulfilment(t.Context(), fulfilment.Config().ConnString()); err != nil {
		t.Fatal(err)
	}
	t.Run("check", func(t *testing.T) { testCheck(t, shop, fulfilment) })
}

// message is an event as the relay publishes it.
func message(topic, key, kind string, version int, payload string) *inbox.Message {
	return inboxtest.Message(topic, key, []byte(payload),
		inbox.Header{Name: "type", Value: []byte(kind)},
		inbox.Header{Name: "aggregateversion", Value: []byte(strconv.Itoa(version))})
}

// A crash before the commit and ten copies at once make one shipment.
func testShipping(t *testing.T, pool *pgxpool.Pool) {
	c := inboxtest.New(t, pool, orders.Ship)
	m := message(orders.OrderTopic, "o-7", "OrderCheckedOut", 2, `{"order": "o-7", "cents": 250}`)
	c.CrashBeforeCommit(m)
	c.DeliverConcurrently(10, m)
	c.RequireProcessedOnce(m, `SELECT count(*) FROM shipments WHERE order_id = 'o-7'`)

	bad := c.Deliver(message(orders.OrderTopic, "o-8", "OrderCheckedOut", 2, `not json`))
	if bad.Outcome != inbox.DeadLettered {
		t.Errorf("a payload that is no JSON is %v, want a dead letter at once", bad.Outcome)
	}
	mustExec(t, pool, `SELECT public.cdc_inbox_discard(array_agg(id)) FROM public.cdc_relay_inbox_letter`)
}

// Going back to earlier messages again and again, an invoice adds up.
func testBilling(t *testing.T, pool *pgxpool.Pool) {
	c := inboxtest.New(t, pool, orders.Bill)
	c.Rewound(1,
		message(orders.OrderTopic, "o-7", "ItemAdded", 1, `{"order": "o-7", "item": "cup", "cents": 100}`),
		message(orders.OrderTopic, "o-7", "ItemAdded", 2, `{"order": "o-7", "item": "pot", "cents": 150}`),
		message(orders.OrderTopic, "o-7", "OrderCheckedOut", 3, `{"order": "o-7", "cents": 250}`))
	var cents int64
	if err := pool.QueryRow(t.Context(), `SELECT cents FROM invoices WHERE order_id = 'o-7' AND sent`).Scan(&cents); err != nil || cents != 250 {
		t.Errorf("invoice of %d cents, %v; want one of 250 that is sent", cents, err)
	}
}

// Whatever order its messages come in, the audit trail has them in that of their versions.
func testAudit(t *testing.T, pool *pgxpool.Pool) {
	audit := orders.Consumers()[2]
	c := inboxtest.New(t, pool, audit.Handler, inboxtest.WithConfig(func(cfg *inbox.Config) { cfg.Sequence = audit.Sequence }))
	var messages []*inbox.Message
	var want []int64
	for version := 1; version <= 10; version++ {
		payload := fmt.Sprintf(`{"item": "cup", "change": 1, "pieces": %d}`, version)
		messages = append(messages, message(audit.Topic, "cup", "StockReceived", version, payload))
		want = append(want, int64(version))
	}
	c.Shuffled(1, messages...)
	c.RunParked()
	var got []int64
	if err := pool.QueryRow(t.Context(), `SELECT array_agg(version ORDER BY id) FROM stock_audit`).Scan(&got); err != nil || !slices.Equal(got, want) {
		t.Errorf("audit trail of versions %v, %v; want %v", got, err, want)
	}
	if _, err := pool.Exec(t.Context(), `DELETE FROM stock_audit`); err == nil || !strings.Contains(err.Error(), "append-only") {
		t.Errorf("deleting from the audit trail = %v, want it refused", err)
	}
}

// Whatever goes wrong between the orders and their effects is found: the demo's verdict rests on it.
func testCheck(t *testing.T, shop, fulfilment *pgxpool.Pool) {
	ctx := t.Context()
	err := pgx.BeginFunc(ctx, shop, func(tx pgx.Tx) error {
		if _, err := orders.Receive(ctx, tx, "cup", 5); err != nil {
			return err
		}
		if _, err := orders.Add(ctx, tx, "o-1", "cup", 2, 250); err != nil {
			return err
		}
		_, err := orders.CheckOut(ctx, tx, "o-1")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	report := func() orders.Report {
		t.Helper()
		r, err := orders.Check(ctx, shop, fulfilment)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := report(); r.Done() || r.Shipped+r.Billed+r.Audited != 0 || r.CheckedOut != 1 || r.Orders != 1 || r.StockChanges != 2 {
		t.Fatalf("report before any effect: %+v", r)
	}
	mustExec(t, fulfilment, `INSERT INTO shipments (order_id) VALUES ('o-1')`)
	mustExec(t, fulfilment, `INSERT INTO invoices (order_id, cents, sent) VALUES ('o-1', 250, true)`)
	mustExec(t, fulfilment, `INSERT INTO stock_audit (item, version, change, pieces) VALUES ('cup', 1, 5, 5), ('cup', 2, -2, 3)`)
	if r := report(); !r.OK() {
		t.Fatalf("report with every effect: %+v", r)
	}
	for _, test := range []struct{ name, damage, repair, want string }{
		{
			"shipped twice", `INSERT INTO shipments (order_id) VALUES ('o-1')`,
			`DELETE FROM shipments WHERE id = (SELECT max(id) FROM shipments)`, "order o-1 has 2 shipments",
		},
		{
			"billed twice", `UPDATE invoices SET cents = 500`, `UPDATE invoices SET cents = 250`,
			"order o-1 costs 250 cents and is billed with 500",
		},
		{
			"shipped for nobody", `INSERT INTO shipments (order_id) VALUES ('o-2')`, `DELETE FROM shipments WHERE order_id = 'o-2'`,
			"order o-2 has effects and does not exist",
		},
		{"billed too little", `UPDATE invoices SET cents = 100`, `UPDATE invoices SET cents = 250`, ""},
		{
			"audited twice", `INSERT INTO stock_audit (item, version, change, pieces) VALUES ('cup', 2, -2, 3)`,
			"", "the audit of cup goes from version 2 with 3 pieces to version 2 with 3 by -2",
		},
	} {
		mustExec(t, fulfilment, test.damage)
		if r := report(); r.OK() || !strings.Contains(strings.Join(r.Wrong, "\n"), test.want) {
			t.Errorf("%s: report %+v, want %q", test.name, r, test.want)
		}
		mustExec(t, fulfilment, test.repair)
	}
}

func mustExec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// databases returns those of the order service and of the consumers, with their tables.
func databases(t *testing.T) (shop, fulfilment *pgxpool.Pool) {
	t.Helper()
	ctx := t.Context()
	postgres, err := localstack.StartPostgres(ctx, localstack.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := postgres.Close(); err != nil {
			t.Error(err)
		}
	})
	open := func(name string, setUp func(context.Context, string) error, only ...string) *pgxpool.Pool {
		url := postgres.URL(name)
		if err := execute(ctx, postgres.URL("postgres"), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
		if err := setUp(ctx, url); err != nil {
			t.Fatal(err)
		}
		if err := migrateOnly(ctx, url, only...); err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	return open("shop", orders.SetUpShop, "outbox"), open("fulfilment", orders.SetUpFulfilment, "cdc_relay_inbox")
}
