package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/examples/orders"
)

const (
	workers       = 8
	itemsPerOrder = 3         // and then the order is checked out
	shelf         = 40        // items in the inventory; few enough for workers to meet on the same
	stocked       = 1_000_000 // pieces of each at the start
	rollbackRate  = 20        // one transaction in so many is rolled back on purpose
)

// eventsPerOrder is how many an order makes in all: each item makes one about the order and one about the inventory, and
// the check-out one.
const eventsPerOrder = 2*itemsPerOrder + 1

// errOnPurpose makes a transaction roll back, as a payment that is refused would.
var errOnPurpose = errors.New("rolled back on purpose")

// orderService lets customers loose on the order service of examples/orders: each fills an order, item by item, and checks
// it out. It knows nothing of the relay or of Kafka.
type orderService struct {
	url   string
	rate  float64 // transactions a second
	total int     // transactions, if the rate can be kept
	seed  uint64

	committed  atomic.Int64 // events
	rolledBack atomic.Int64 // transactions

	mu   sync.Mutex
	sent map[string]time.Time // when the COMMIT of an event was sent, by event id
}

func newOrderService(url string, opts options) *orderService {
	rate := float64(opts.rate) * (itemsPerOrder + 1) / eventsPerOrder
	return &orderService{
		url: url, rate: rate, total: int(rate * opts.duration.Seconds()), seed: opts.seed, sent: map[string]time.Time{},
	}
}

// commitSent returns when the COMMIT of an event was sent, and whether there was one.
func (s *orderService) commitSent(id string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := s.sent[id]
	return at, found
}

// stock fills the inventory.
func (s *orderService) stock(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return s.transact(ctx, conn, nil, func(tx pgx.Tx) ([]string, error) {
		var ids []string
		for n := range shelf {
			id, err := orders.Receive(ctx, tx, itemName(n), stocked)
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		return ids, nil
	})
}

// run commits transactions at the rate until it has committed all or working ends; those that are under way then are
// completed under ctx.
func (s *orderService) run(ctx, working context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			if err := s.work(ctx, working, worker, began); err != nil {
				cancel(fmt.Errorf("run order service: %w", err))
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// work is one worker: of all transactions, each has its moment, and every eighth is this worker's.
func (s *orderService) work(ctx, working context.Context, worker int, began time.Time) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	random := rand.New(rand.NewPCG(s.seed, uint64(worker))) //nolint:gosec // Repeatable on purpose.
	for n := worker; n < s.total; n += workers {
		due := began.Add(time.Duration(float64(n) / s.rate * float64(time.Second)))
		if !sleepUntil(ctx, working, due) {
			return nil
		}
		change := next(ctx, worker, n/workers, random)
		if random.IntN(rollbackRate) == 0 {
			if err := s.transact(ctx, conn, errOnPurpose, change); !errors.Is(err, errOnPurpose) {
				return err
			}
			s.rolledBack.Add(1)
		}
		if err := s.transact(ctx, conn, nil, change); err != nil {
			return err
		}
	}
	return nil
}

// next is a worker's turn-th change: one item after the other into an order, then the check-out, then the next order.
func next(ctx context.Context, worker, turn int, random *rand.Rand) func(pgx.Tx) ([]string, error) {
	order := fmt.Sprintf("o-%05d", 1+worker+turn/(itemsPerOrder+1)*workers)
	item, pieces, cents := itemName(random.IntN(shelf)), 1+random.Int64N(3), 100+random.Int64N(9900)
	if turn%(itemsPerOrder+1) < itemsPerOrder {
		return func(tx pgx.Tx) ([]string, error) { return orders.Add(ctx, tx, order, item, pieces, cents) }
	}
	return func(tx pgx.Tx) ([]string, error) {
		id, err := orders.CheckOut(ctx, tx, order)
		return []string{id}, err
	}
}

func itemName(n int) string { return fmt.Sprintf("item-%02d", 1+n) }

// transact makes a change and the events about it, all or nothing. A verdict makes it roll back at the end.
func (s *orderService) transact(ctx context.Context, conn *pgx.Conn, verdict error, change func(pgx.Tx) ([]string, error)) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // Without effect after a commit.
	ids, err := change(tx)
	if err != nil {
		return err
	}
	if verdict != nil {
		return verdict
	}
	s.mu.Lock()
	now := time.Now()
	for _, id := range ids {
		s.sent[id] = now
	}
	s.mu.Unlock()
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	s.committed.Add(int64(len(ids)))
	return nil
}

// sleepUntil returns false when a context ends, even if the moment is in the past.
func sleepUntil(ctx, working context.Context, due time.Time) bool {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return working.Err() == nil && ctx.Err() == nil
	case <-working.Done():
	case <-ctx.Done():
	}
	return false
}

// readOutbox returns every committed event.
func readOutbox(ctx context.Context, url string) ([]event, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("read outbox table: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `SELECT id::text, aggregateid, aggregateversion FROM public.outbox`)
	if err != nil {
		return nil, fmt.Errorf("read outbox table: %w", err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event, error) {
		var e event
		return e, row.Scan(&e.id, &e.key, &e.version)
	})
	if err != nil {
		return nil, fmt.Errorf("read outbox table: %w", err)
	}
	return events, nil
}

// execute runs one statement on a connection of its own.
func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}
