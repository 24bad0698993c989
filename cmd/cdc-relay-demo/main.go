// Command cdc-relay-demo shows cdc-relay at work on this machine and needs nothing but Go: it starts PostgreSQL, a Kafka
// broker inside this process, the order service of examples/orders, and the relay and the example's three consumers as
// child processes; shows events as they arrive; and in the end compares the outbox table with what has arrived, and the
// orders with what the consumers have done.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes, the same as those of cdc-relay.
const (
	exitOK          = 0
	exitFailed      = 1 // an event or an effect is missing, out of order or there twice, or the demo could not run
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, abandon := context.WithCancel(context.Background())
	working, finish := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2) // room for the second signal while the first is handled
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		finish()
		<-signals
		abandon()
	}()
	os.Exit(run(ctx, working, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process, and returns the exit code. When working ends, the demo stops early, with the summary;
// when ctx does, it only cleans up.
func run(ctx, working context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parseOptions(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "cdc-relay-demo: %v\nTry: go run ./cmd/cdc-relay-demo --help\n", err)
		return exitUsage
	}
	s := newScreen(stdout)
	result, err := tour(ctx, working, opts, s)
	switch {
	case errors.Is(err, errStoppedEarly), ctx.Err() != nil:
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(stderr, "cdc-relay-demo: %v\n", err)
		return exitFailed
	}
	s.summary(result)
	if !result.ok() {
		return exitFailed
	}
	return exitOK
}
