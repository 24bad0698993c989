package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cdc-relay/cdc-relay/examples/orders"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

const (
	partitions = 4 // of each topic

	// patience is how long nothing may arrive before the rest counts as missing. It covers a relay that has just been
	// killed and starts again on a busy machine.
	patience = 20 * time.Second

	// lateness is how late the last events may be committed when the service cannot quite keep the rate.
	lateness = 250 * time.Millisecond
)

// topics are those of the example.
func topics() []string { return []string{orders.OrderTopic, orders.StockTopic} }

// errStoppedEarly says that Ctrl-C came before there was anything to sum up.
var errStoppedEarly = errors.New("stopped before the work began")

// result is what the summary tells.
type result struct {
	comparison
	effects       orders.Report
	worked        time.Duration // how long the order service worked
	rolledBack    int64         // transactions rolled back on purpose
	kills         int64         // of the relay
	consumerKills int64
	p50, p99, max time.Duration
	log           string // what relay and consumers have said last
}

// ok says whether every promise was kept.
func (r result) ok() bool { return r.comparison.ok() && r.effects.OK() }

// stage holds everything that the demo runs.
type stage struct {
	opts       options
	screen     *screen
	shop       string // URL of the database with orders, inventory and outbox
	fulfilment string // URL of the consumers' database
	service    *orderService
	reader     *reader
	relay      *relay
	consumers  *consumers
	worked     time.Duration // how long the order service worked

	closers []func() error // in the order of opening
}

// tour sets up, lets everything work, and compares. The contexts are those of run.
func tour(ctx, working context.Context, opts options, s *screen) (result result, err error) {
	d := &stage{opts: opts, screen: s}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.setUp(working); err != nil {
		if working.Err() != nil {
			return result, errStoppedEarly
		}
		return result, err
	}
	if err := d.work(ctx, working); err != nil {
		return result, err
	}
	rows, err := readOutbox(ctx, d.shop)
	if err != nil {
		return result, err
	}
	fmt.Fprintln(s.out)
	err = s.step("consumers", func(func(string)) (detail string, err error) {
		result.effects, err = d.consumers.await(ctx, d.shop, d.fulfilment, patience)
		if !result.effects.Done() {
			return "have not done everything", err
		}
		return "have done everything", err
	})
	if err != nil {
		return result, err
	}
	if err := d.consumers.stop(ctx); err != nil {
		return result, err
	}
	result.log = d.relay.logTail() + "\n" + d.consumers.logTails()
	records, latencies := d.reader.all()
	result.comparison = compare(rows, records)
	result.worked = d.worked
	result.rolledBack, result.kills = d.service.rolledBack.Load(), d.relay.kills.Load()
	result.consumerKills = d.consumers.kills.Load()
	result.p50, result.p99, result.max = percentile(latencies, 50), percentile(latencies, 99), percentile(latencies, 100)
	return result, nil
}

// close ends what is running, the last first, and removes all files.
func (d *stage) close() error {
	var errs []error
	for _, closer := range slices.Backward(d.closers) {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

func (d *stage) onClose(f func() error) { d.closers = append(d.closers, f) }

// setUp starts everything but the order service.
func (d *stage) setUp(ctx context.Context) error {
	d.screen.title(d.opts)
	dir, err := os.MkdirTemp("", "cdc-relay-demo-")
	if err != nil {
		return fmt.Errorf("create temporary directory: %w", err)
	}
	d.onClose(func() error { return os.RemoveAll(dir) })
	err = d.screen.step("cdc-relay", func(progress func(string)) (string, error) {
		progress("building; the first time takes a while")
		return "built from this source", build(ctx, dir)
	})
	if err != nil {
		return err
	}
	if err := d.screen.step("PostgreSQL", func(progress func(string)) (string, error) { return d.startPostgres(ctx, progress) }); err != nil {
		return err
	}
	var brokers []string
	err = d.screen.step("Kafka broker", func(func(string)) (string, error) {
		brokers, err = d.startBroker()
		return fmt.Sprintf("in this process, %d topics", len(topics())), err
	})
	if err != nil {
		return err
	}
	if err := d.screen.step("relay", func(func(string)) (string, error) { return d.startRelay(ctx, dir, brokers) }); err != nil {
		return err
	}
	return d.screen.step("consumers", func(func(string)) (string, error) { return d.startConsumers(ctx, dir, brokers) })
}

func (d *stage) startPostgres(ctx context.Context, progress func(string)) (string, error) {
	postgres, err := localstack.StartPostgres(ctx, localstack.PostgresConfig{Progress: func(line string) {
		line, _, _ = strings.Cut(line, " … ") // The screen adds the time.
		progress(line)
	}})
	if err != nil {
		return "", err
	}
	d.onClose(postgres.Close)
	d.shop, d.fulfilment = postgres.URL("shop"), postgres.URL("fulfilment")
	for _, sql := range []string{"CREATE DATABASE shop", "CREATE DATABASE fulfilment"} {
		if err := execute(ctx, postgres.URL("postgres"), sql); err != nil {
			return "", fmt.Errorf("create databases: %w", err)
		}
	}
	if err := orders.SetUpShop(ctx, d.shop); err != nil {
		return "", err
	}
	d.service = newOrderService(d.shop, d.opts)
	return fmt.Sprintf("version %d on %s", postgres.Major(), postgres.Addr()), nil
}

func (d *stage) startBroker() ([]string, error) {
	broker, err := localstack.StartFake(1, kfake.GroupMinSessionTimeout(sessionTimeout))
	if err != nil {
		return nil, err
	}
	d.onClose(broker.Close)
	for _, topic := range topics() {
		if err := broker.Cluster.CreateTopic(topic, partitions, nil); err != nil {
			return nil, fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
	if d.reader, err = newReader(broker.Addrs(), topics(), d.service.commitSent); err != nil {
		return nil, err
	}
	d.reader.end = func() map[place]int64 {
		end := map[place]int64{}
		for _, topic := range topics() {
			for _, partition := range broker.Cluster.PartitionInfos(topic) {
				end[place{topic, partition.Partition}] = partition.HighWatermark
			}
		}
		return end
	}
	d.onClose(d.reader.close)
	return broker.Addrs(), nil
}

func (d *stage) startRelay(ctx context.Context, dir string, brokers []string) (string, error) {
	port, err := localstack.ReservePort()
	if err != nil {
		return "", err
	}
	d.onClose(func() error { port.Release(); return nil })
	if d.relay, err = newRelay(dir, d.shop, brokers, port.Addr()); err != nil {
		return "", err
	}
	d.onClose(d.relay.kill)
	if err := d.relay.start(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("process %d, streams the write-ahead log", d.relay.process.PID()), nil
}

func (d *stage) startConsumers(ctx context.Context, dir string, brokers []string) (string, error) {
	if err := orders.SetUpFulfilment(ctx, d.fulfilment); err != nil {
		return "", err
	}
	if err := migrateOnly(ctx, d.fulfilment, "cdc_relay_inbox"); err != nil {
		return "", err
	}
	d.consumers = newConsumers(dir, d.fulfilment, brokers)
	d.onClose(d.consumers.killAll)
	if err := d.consumers.start(); err != nil {
		return "", err
	}
	return "shipping, billing and audit, a process each", d.service.stock(ctx)
}

// work lets the order service work for its time, and returns when the relay has delivered all and is stopped.
func (d *stage) work(ctx, working context.Context) error {
	var background sync.WaitGroup
	defer background.Wait()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	background.Go(func() {
		if err := d.reader.run(ctx); err != nil {
			fail(err)
		}
	})
	view := d.screen.follow(d.frame)
	defer view.stop()

	working, cancel := context.WithTimeout(working, d.opts.duration+lateness)
	defer cancel()
	supervised := d.supervise(working, fail)
	began := time.Now()
	err := d.service.run(ctx, working)
	d.worked = time.Since(began)
	cancel()
	supervised.Wait()
	if err == nil {
		err = d.drain(ctx)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause // what has ended the rest
	}
	return err
}

// supervise watches the children, and kills them with --chaos, until working ends.
func (d *stage) supervise(working context.Context, fail context.CancelCauseFunc) *sync.WaitGroup {
	var chance *rand.Rand
	if d.opts.chaos {
		chance = rand.New(rand.NewPCG(d.opts.seed, 0)) //nolint:gosec // Repeatable on purpose.
	}
	var group sync.WaitGroup
	group.Go(func() {
		if err := d.relay.supervise(working, chance, d.screen.note); err != nil {
			fail(err)
		}
	})
	group.Go(func() {
		if err := d.consumers.supervise(working, d.opts.chaos, d.opts.seed, d.screen.note); err != nil {
			fail(err)
		}
	})
	return &group
}

// drain waits until everything that is in the table has arrived, stops the relay, and reads what it sent last.
func (d *stage) drain(ctx context.Context) error {
	rows, err := readOutbox(ctx, d.shop)
	if err != nil {
		return err
	}
	if err := d.relay.waitReady(ctx); err != nil { // It may have been killed a moment ago.
		return err
	}
	supervising, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		defer cancel()
		failed <- d.relay.supervise(supervising, nil, d.screen.note)
	}()
	d.reader.waitEvents(supervising, patience, rows)
	cancel()
	if err := <-failed; err != nil {
		return err
	}
	if err := d.relay.stop(ctx); err != nil {
		return err
	}
	if !d.reader.waitEnd(ctx, patience) && ctx.Err() == nil {
		return errors.New("read topic to its end: nothing arrives")
	}
	return nil
}

// frame is what the live view shows at this moment.
func (d *stage) frame() frame {
	const window = 1000
	count, last, latencies := d.reader.state(window)
	return frame{
		// An event can arrive before the service has heard of its own commit.
		committed: max(d.service.committed.Load(), int64(count)), delivered: int64(count), last: last,
		p50: percentile(latencies, 50), p99: percentile(latencies, 99),
	}
}
