// Command cdc-relay publishes the rows that applications insert into an outbox table of Postgres to
// Kafka, by following the write-ahead log. Each command is a file here; the work is in internal/.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// gcPercent is how much the heap may grow between two garbage collections. Most of
// it is rows in flight, in memory that is used again, so there is little garbage
// and a collection costs next to nothing; with Go's default of 100 the process
// would take twice its bytes in flight. GOGC in the environment wins.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	signals := make(chan os.Signal, 2) // room for the second signal while the first is handled
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx := untilSignal(signals, os.Exit)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}

// untilSignal returns a context that ends with the first signal; the second exits at once. Its
// goroutine lives as long as the process.
func untilSignal(signals <-chan os.Signal, exit func(code int)) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancel()
		<-signals
		exit(exitInterrupted)
	}()
	return ctx
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
