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
)

const (
	workers      = 8
	openOrders   = 250 // few enough for workers to meet on the same order
	rollbackRate = 20  // one transaction in so many is rolled back on purpose
)

const createOrders = `CREATE TABLE public.orders (
	id          text   PRIMARY KEY,
	total_cents bigint NOT NULL,
	version     bigint NOT NULL
)`

// The two statements of every transaction. The first locks the order's row until the commit, so that versions are
// committed in order.
const (
	changeOrder = `
INSERT INTO public.orders AS o (id, total_cents, version) VALUES ($1, $2, 1)
ON CONFLICT (id) DO UPDATE SET total_cents = o.total_cents + excluded.total_cents, version = o.version + 1
RETURNING version, total_cents`

	writeEvent = `
INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
VALUES ('order', $1, $2, json_build_object('version', $3::bigint, 'total_cents', $4::bigint))
RETURNING id::text`
)

// errOnPurpose makes a transaction roll back, as a payment that is refused would.
var errOnPurpose = errors.New("rolled back on purpose")

// orderService is the application: it knows its two tables, and nothing of the relay or of Kafka.
type orderService struct {
	url   string
	rate  int
	total int // events, if the rate can be kept
	seed  uint64

	committed, rolledBack atomic.Int64

	mu   sync.Mutex
	sent map[string]time.Time // when the COMMIT of an event was sent, by event id
}

func newOrderService(url string, opts options) *orderService {
	total := int(float64(opts.rate) * opts.duration.Seconds())
	return &orderService{url: url, rate: opts.rate, total: total, seed: opts.seed, sent: map[string]time.Time{}}
}

// commitSent returns when the COMMIT of an event was sent, and whether there was one.
func (s *orderService) commitSent(id string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := s.sent[id]
	return at, found
}

// run commits events at the rate until it has committed all or working ends; transactions that are under way then are completed under ctx.
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

// work is one worker: of all events, each has its moment, and every eighth is this worker's.
func (s *orderService) work(ctx, working context.Context, worker int, began time.Time) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	random := rand.New(rand.NewPCG(s.seed, uint64(worker))) //nolint:gosec // Repeatable on purpose.
	for n := worker; n < s.total; n += workers {
		due := began.Add(time.Duration(float64(n) / float64(s.rate) * float64(time.Second)))
		if !sleepUntil(ctx, working, due) {
			return nil
		}
		if random.IntN(rollbackRate) == 0 {
			if err := s.transact(ctx, conn, random, errOnPurpose); !errors.Is(err, errOnPurpose) {
				return err
			}
			s.rolledBack.Add(1)
		}
		if err := s.transact(ctx, conn, random, nil); err != nil {
			return err
		}
		s.committed.Add(1)
	}
	return nil
}

// transact changes an order and writes the event about it, both or neither. A verdict makes it roll back at the end.
func (s *orderService) transact(ctx context.Context, conn *pgx.Conn, random *rand.Rand, verdict error) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // Without effect after a commit.
	order := fmt.Sprintf("o-%04d", 1+random.IntN(openOrders))
	var version, total int64
	if err := tx.QueryRow(ctx, changeOrder, order, 100+random.IntN(9900)).Scan(&version, &total); err != nil {
		return err
	}
	kind := "ItemAdded"
	if version == 1 {
		kind = "OrderPlaced"
	}
	var id string
	if err := tx.QueryRow(ctx, writeEvent, order, kind, version, total).Scan(&id); err != nil {
		return err
	}
	if verdict != nil {
		return verdict
	}
	s.mu.Lock()
	s.sent[id] = time.Now()
	s.mu.Unlock()
	return tx.Commit(ctx)
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
	rows, err := conn.Query(ctx, `SELECT id::text, aggregateid, (payload->>'version')::bigint FROM public.outbox`)
	if err != nil {
		return nil, fmt.Errorf("read outbox table: %w", err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event, error) {
		var e event
		return e, row.Scan(&e.id, &e.order, &e.version)
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
