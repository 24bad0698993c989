// Command bench measures the relay beside pg_recvlogical on servers of its own and prints Markdown tables. What is
// measured and how to read it is in docs/benchmarks.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parts are what can be measured.
func parts() []string { return []string{"drain", "latency", "memory", "claim"} }

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var opts measure.Options
	what := flags.String("run", "drain,latency,claim", "what to measure: "+strings.Join(parts(), ", "))
	out := flags.String("out", "", "directory for bench.json and bench.md")
	quick := flags.Bool("quick", false, "small sizes, to see that it works")
	rates := flags.String("rates", "10,200", "events a second for latency")
	flags.StringVar(&opts.Relay, "relay", "", "binary to measure instead of this checkout's")
	flags.IntVar(&opts.Rounds, "rounds", 3, "rounds of each drain and claim; medians count")
	flags.IntVar(&opts.SingleRows, "single-rows", 300_000, "rows of the backlog of one-row transactions")
	flags.IntVar(&opts.BatchRows, "batch-rows", 600_000, "rows of the backlog of 100-row transactions")
	flags.DurationVar(&opts.Duration, "duration", 20*time.Second, "how long each rate is held")
	flags.IntVar(&opts.MemoryRows, "memory-rows", 1_000_000, "rows of 1 KB of the one transaction for memory")
	flags.IntVar(&opts.ClaimMessages, "claim-messages", 20_000, "messages of each run with and without the claim")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *quick {
		opts.Rounds, opts.SingleRows, opts.BatchRows, opts.Duration, opts.MemoryRows = 1, 50_000, 100_000, 5*time.Second, 100_000
		opts.ClaimMessages = 5_000
	}
	for rate := range strings.SplitSeq(*rates, ",") {
		n, err := strconv.Atoi(rate)
		if err != nil || n < 1 {
			return fmt.Errorf("flag -rates: %q is no rate", rate)
		}
		opts.Rates = append(opts.Rates, n)
	}
	wanted := strings.Split(*what, ",")
	for _, part := range wanted {
		if !slices.Contains(parts(), part) {
			return fmt.Errorf("flag -run: %q is none of %s", part, strings.Join(parts(), ", "))
		}
	}
	opts.Progress = func(line string) { fmt.Fprintln(os.Stderr, "bench:", line) }
	report, err := measureAll(ctx, opts, wanted)
	if err != nil {
		return err
	}
	fmt.Print(report.Markdown())
	return write(report, *out)
}

func measureAll(ctx context.Context, opts measure.Options, wanted []string) (report measure.Report, err error) {
	lab, err := measure.Open(ctx, opts)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	report.Machine = lab.Machine(ctx)
	if slices.Contains(wanted, "drain") {
		if report.Drain, err = lab.Drain(ctx); err != nil {
			return report, err
		}
	}
	if slices.Contains(wanted, "latency") {
		if report.Latency, err = lab.Latency(ctx); err != nil {
			return report, err
		}
	}
	if slices.Contains(wanted, "memory") {
		memory, err := lab.Memory(ctx)
		if err != nil {
			return report, err
		}
		report.Memory = &memory
	}
	if slices.Contains(wanted, "claim") {
		claim, err := lab.Claim(ctx)
		if err != nil {
			return report, err
		}
		report.Claim = &claim
	}
	return report, nil
}

func write(report measure.Report, dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bench.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bench.md"), []byte(report.Markdown()), 0o644)
}
