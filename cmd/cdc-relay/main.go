// Command cdc-relay publishes the rows that applications insert into an outbox table of Postgres to
// Kafka, by following the write-ahead log. Each command is a file here; the work is in internal/.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2) // room for the second signal while the first is handled
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(exitInterrupted)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}

// run executes one command line and returns the exit code. It is main without the process: args
// lack the program's name. When ctx ends, commands stop cleanly.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, environ []string) int {
	a := &app{stderr: stderr, environ: environ}
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)

	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	return complain(stderr, err)
}

// complain says what is wrong and what to try, and returns the exit code.
func complain(stderr io.Writer, err error) int {
	what, next, code := explain(err)
	fmt.Fprintf(stderr, "cdc-relay: %s\n", what)
	if next != "" {
		fmt.Fprintf(stderr, "Try: %s\n", next)
	}
	return code
}
