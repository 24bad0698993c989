package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

const usage = `cdc-relay-demo starts PostgreSQL, a Kafka broker, an order service, cdc-relay and three consumers
on this machine and shows events as they arrive. In the end it compares the outbox table with what
has arrived, and the orders with what the consumers have done: one shipment for each, the right
invoice, and an audit trail of the inventory without a hole. It needs Go and nothing else. The
first run downloads PostgreSQL.

Usage:
  go run ./cmd/cdc-relay-demo [flags]

Flags:
      --duration time   how long the order service works (default 10s)
      --rate number     events a second (default 200)
      --chaos           kill the relay, and consumers, with SIGKILL every second or two, and start them
                        again
      --seed number     seed of all random choices (default 1)
  -h, --help            this text

Ctrl-C ends the work early, with the summary; a second one leaves at once.

Exit codes: 0 all events arrived in order (repeated ones are allowed) and each effect happened
exactly once, 1 something is missing, out of order or there twice, or the demo could not run,
2 bad usage, 130 interrupted before the summary.

Examples:
  go run ./cmd/cdc-relay-demo
  go run ./cmd/cdc-relay-demo --chaos --duration 1m --rate 1000
`

// options are the command line.
type options struct {
	duration time.Duration // how long the order service works
	rate     int           // events a second
	chaos    bool          // kill the relay and the consumers again and again
	seed     uint64        // of all random choices
}

// parseOptions reads the command line. It prints the help to stdout and returns [flag.ErrHelp] when that is asked for.
func parseOptions(args []string, stdout io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("cdc-relay-demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&o.duration, "duration", 10*time.Second, "")
	flags.IntVar(&o.rate, "rate", 200, "")
	flags.BoolVar(&o.chaos, "chaos", false, "")
	flags.Uint64Var(&o.seed, "seed", 1, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.duration <= 0:
		err = fmt.Errorf("--duration is %v: give a positive time such as 30s", o.duration)
	case o.rate < 1 || o.rate > 100_000:
		err = fmt.Errorf("--rate is %d: give a number from 1 to 100000", o.rate)
	}
	return o, err
}
