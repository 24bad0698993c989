// Command orders runs one part of the example as a process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/examples/orders"
)

const usage = `orders runs one part of the example of cdc-relay as a process.

Usage:
  orders PART [flags]

Parts:
  setup       create the tables of the order service and of the consumers
  shop        sell: ten orders, each with its events, in one transaction a change
  shipping    the consumer that ships
  billing     the consumer that sends invoices
  audit       the consumer that keeps the audit trail of the inventory
  check       compare both databases; exits with 1 when an effect is missing or there twice

Flags:
  -shop URL             database of the order service, with the outbox
  -fulfilment URL       database of the consumers, with the inbox
  -brokers LIST         Kafka brokers, host:port separated by commas (127.0.0.1:9092)
  -session-timeout TIME how long a killed consumer keeps its partitions
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "orders: %v\n", err)
		os.Exit(1)
	}
}

// run is main without the process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	shop := flags.String("shop", "", "")
	fulfilment := flags.String("fulfilment", "", "")
	brokers := flags.String("brokers", "127.0.0.1:9092", "")
	sessionTimeout := flags.Duration("session-timeout", 0, "")
	if len(args) == 0 {
		args = []string{"-help"}
	}
	part := args[0]
	if strings.HasPrefix(part, "-") {
		return flags.Parse(args)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch part {
	case "setup":
		if err := orders.SetUpShop(ctx, *shop); err != nil {
			return err
		}
		return orders.SetUpFulfilment(ctx, *fulfilment)
	case "shop":
		return sell(ctx, *shop, stdout)
	case "check":
		return check(ctx, *shop, *fulfilment, stdout)
	}
	all := orders.Consumers()
	i := slices.IndexFunc(all, func(c orders.Consumer) bool { return c.Name == part })
	if i < 0 {
		return fmt.Errorf("unknown part %q: orders -help lists them", part)
	}
	return all[i].Run(ctx, orders.Settings{
		Database: *fulfilment, Brokers: strings.Split(*brokers, ","), SessionTimeout: *sessionTimeout,
		Logger: slog.New(slog.NewTextHandler(stderr, nil)),
	})
}

// sell makes ten orders of three items each.
func sell(ctx context.Context, url string, stdout io.Writer) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	begun := time.Now().UTC().Format("20060102T150405")
	for n := range 10 {
		order := fmt.Sprintf("%s-%d", begun, n)
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for _, item := range []string{"cup", "pot", "tea"} { // always in this order, or two sales may lock each other out
				if _, err := orders.Receive(ctx, tx, item, 2); err != nil {
					return err
				}
				if _, err := orders.Add(ctx, tx, order, item, 2, 1250); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := orders.CheckOut(ctx, tx, order)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, "sold", order)
	}
	return nil
}

func check(ctx context.Context, shopURL, fulfilmentURL string, stdout io.Writer) error {
	shop, err := pgxpool.New(ctx, shopURL)
	if err != nil {
		return err
	}
	defer shop.Close()
	fulfilment, err := pgxpool.New(ctx, fulfilmentURL)
	if err != nil {
		return err
	}
	defer fulfilment.Close()
	r, err := orders.Check(ctx, shop, fulfilment)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d orders checked out, %d with exactly one shipment\n", r.CheckedOut, r.Shipped)
	fmt.Fprintf(stdout, "%d orders, %d with the right invoice\n", r.Orders, r.Billed)
	fmt.Fprintf(stdout, "%d changes of the inventory, %d in the audit\n", r.StockChanges, r.Audited)
	fmt.Fprintf(stdout, "%d dead letters and parked messages\n", r.DeadLetters)
	for _, wrong := range r.Wrong {
		fmt.Fprintln(stdout, wrong)
	}
	if !r.OK() {
		return errors.New("not every effect has happened exactly once (yet?)")
	}
	return nil
}
