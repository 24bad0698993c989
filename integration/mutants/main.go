// Command mutants shows that the tests would notice: it builds the relay with one deliberate mistake after another, each
// the breach of a promise, and fails unless the test that guards the promise fails. The work tree is not touched: the go
// command is given the changed files as an overlay.
//
// The mistakes are in the files *.mutants beside this one; see [parse] for their form. A mutant counts as caught when its test passes without it, and with it fails by its own judgement, with the words that
// the table expects. A build that fails, a crash or a time-out is no catch.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// workers is how many mutants are built and tested at a time.
const workers = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	pattern := flags.String("run", "", "only mutants whose name matches this regular expression")
	list := flags.Bool("list", false, "show the mutants and run nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	all, err := readTable(root)
	if err != nil {
		return err
	}
	chosen, err := choose(all, *pattern)
	if err != nil {
		return err
	}
	if *list {
		for _, m := range chosen {
			fmt.Printf("%s\n    breaks: %s\n    loses:  %s\n    caught by: %s %s\n", m.name, m.breaks, m.loses, m.pkg, m.test)
		}
		return nil
	}
	began := time.Now()
	lab := &lab{root: root}
	if err := lab.open(); err != nil {
		return err
	}
	defer lab.close()
	if err := lab.baseline(ctx, chosen); err != nil {
		return err
	}
	if failed := lab.hunt(ctx, chosen); failed > 0 {
		return fmt.Errorf("%d of %d mutants were not caught", failed, len(chosen))
	}
	fmt.Printf("all %d mutants were caught in %v\n", len(chosen), time.Since(began).Round(time.Second))
	return nil
}

// moduleRoot is the root of the repository.
func moduleRoot(ctx context.Context) (string, error) {
	const module = "github.com/cdc-relay/cdc-relay"
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", module, err)
	}
	return strings.TrimSpace(string(dir)), nil
}
