package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/examples/orders"
	"github.com/cdc-relay/cdc-relay/integration/process"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// sessionTimeout is how long a consumer that was killed keeps its partitions, which is short, for the demo is. A busy
// machine that keeps a consumer from its heartbeats for so long costs a rebalance and nothing else.
const sessionTimeout = 2 * time.Second

// migrateOnly runs the migrations of these names, as `cdc-relay migrate up --only NAMES` does.
func migrateOnly(ctx context.Context, url string, names ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = migrations.Up(ctx, conn, migrations.Options{Only: names})
	return err
}

// consumers are the example's three consumers as child processes, again and again.
type consumers struct {
	all   []*consumer
	kills atomic.Int64
}

// consumer is one of them.
type consumer struct {
	name, log string
	args      []string
	binary    string
	process   *process.Process
}

func newConsumers(dir, url string, brokers []string) *consumers {
	var c consumers
	for _, example := range orders.Consumers() {
		c.all = append(c.all, &consumer{
			name: example.Name, binary: filepath.Join(dir, "orders"), log: filepath.Join(dir, example.Name+".log"),
			args: []string{
				example.Name, "-fulfilment", url, "-brokers", strings.Join(brokers, ","),
				"-session-timeout", sessionTimeout.String(),
			},
		})
	}
	return &c
}

// start starts all. The children end with this process on Linux, however that ends.
func (c *consumers) start() error {
	for _, one := range c.all {
		if err := one.start(); err != nil {
			return err
		}
	}
	return nil
}

func (c *consumer) start() error {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(c.binary, c.args...) //nolint:gosec // All arguments are ours.
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, environment()
	c.process, err = process.Start(cmd, process.Options{})
	return err
}

func (c *consumer) kill() error {
	if c.process == nil {
		return nil
	}
	err := c.process.Signal(syscall.SIGKILL)
	<-c.process.Done()
	return err
}

func (c *consumer) failure() error {
	return fmt.Errorf("consumer %s ended with %v, and last said:\n%s", c.name, c.process.State(), logTail(c.log))
}

// supervise watches the consumers until ctx ends, and returns an error when one has ended by itself. With a seed each is
// killed without warning every few seconds, and started again.
func (c *consumers) supervise(ctx context.Context, chaos bool, seed uint64, note func(colour, format string, args ...any)) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, one := range c.all {
		var chance *rand.Rand
		if chaos {
			chance = rand.New(rand.NewPCG(seed, uint64(i+1))) //nolint:gosec // Repeatable on purpose.
		}
		group.Go(func() error { return one.supervise(ctx, chance, &c.kills, note) })
	}
	return group.Wait()
}

func (c *consumer) supervise(ctx context.Context, chance *rand.Rand, kills *atomic.Int64, note func(colour, format string, args ...any)) error {
	var kill <-chan time.Time
	for {
		if chance != nil {
			kill = time.After(time.Second + time.Duration(chance.Int64N(int64(3*time.Second))))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.process.Done():
			return c.failure()
		case <-kill:
			note(red, "SIGKILL to %s, process %d", c.name, c.process.PID())
			if err := c.kill(); err != nil {
				return err
			}
			kills.Add(1)
			if err := c.start(); err != nil {
				return err
			}
		}
	}
}

// await returns the report on the effects when they are complete, or when nothing has happened for as long as patience.
func (c *consumers) await(ctx context.Context, shopURL, fulfilmentURL string, patience time.Duration) (orders.Report, error) {
	shop, err := pgxpool.New(ctx, shopURL)
	if err != nil {
		return orders.Report{}, err
	}
	defer shop.Close()
	fulfilment, err := pgxpool.New(ctx, fulfilmentURL)
	if err != nil {
		return orders.Report{}, err
	}
	defer fulfilment.Close()
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		defer cancel()
		failed <- c.supervise(ctx, false, 0, nil)
	}()
	report, err := c.poll(ctx, shop, fulfilment, patience)
	cancel()
	if ended := <-failed; ended != nil {
		return report, ended // which has ended the polling, too
	}
	return report, err
}

func (c *consumers) poll(ctx context.Context, shop, fulfilment *pgxpool.Pool, patience time.Duration) (orders.Report, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var (
		last    int
		changed = time.Now()
	)
	for {
		report, err := orders.Check(ctx, shop, fulfilment)
		if err != nil || report.Done() || time.Since(changed) > patience {
			return report, err
		}
		if n := report.Shipped + report.Billed + report.Audited; n != last {
			last, changed = n, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return report, ctx.Err()
		}
	}
}

// stop lets the consumers finish what they have begun and leave.
func (c *consumers) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("still running after 20 s"))
	defer cancel()
	for _, one := range c.all {
		if err := one.process.Stop(ctx, syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop %s: %w", one.name, err)
		}
		if one.process.Err() != nil {
			return one.failure()
		}
	}
	return nil
}

func (c *consumers) killAll() error {
	var errs []error
	for _, one := range c.all {
		errs = append(errs, one.kill())
	}
	return errors.Join(errs...)
}

func (c *consumers) logTails() string {
	var b strings.Builder
	for _, one := range c.all {
		fmt.Fprintf(&b, "%s:\n%s\n", one.name, logTail(one.log))
	}
	return b.String()
}
