package checker

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Write writes transactions until ctx ends or all are written, and then returns nil. A server that is gone does not end
// it: it connects again. A statement that the server refuses does.
func (c *Checker) Write(ctx context.Context) error {
	errs := make([]error, c.cfg.Writers)
	var all sync.WaitGroup
	for i := range c.cfg.Writers {
		w := writer{c: c, random: rand.New(rand.NewPCG(c.cfg.Seed, uint64(i)))}
		all.Go(func() { errs[i] = w.run(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Begin begins to write, and to take a sample ten times a second. end ends both and returns what Write does; it may be
// called again.
func (c *Checker) Begin(ctx context.Context) (end func() error) {
	ctx, stop := context.WithCancel(ctx)
	wrote := make(chan error, 1)
	var watched sync.WaitGroup
	go func() { wrote <- c.Write(ctx) }()
	watched.Go(func() { c.Watch(ctx, 100*time.Millisecond) })
	return sync.OnceValue(func() error {
		stop()
		watched.Wait()
		return <-wrote
	})
}

// writer is one connection that writes.
type writer struct {
	c      *Checker
	random *rand.Rand
	conn   *pgx.Conn
	due    time.Time // of the next transaction, as the rate has it
}

func (w *writer) run(ctx context.Context) error {
	defer w.disconnect()
	for done := 0; ctx.Err() == nil && (w.c.cfg.Transactions == 0 || done < w.c.cfg.Transactions); {
		rows := 1 + w.random.IntN(w.c.cfg.MaxRows)
		err := w.transaction(ctx, rows)
		switch {
		case err == nil:
			done++
			_ = pause(ctx, max(w.c.cfg.Pause, w.wait(rows)))
		case permanent(err):
			return fmt.Errorf("write events: %w", err)
		default:
			w.disconnect()
			_ = pause(ctx, 50*time.Millisecond)
		}
	}
	return nil
}

// wait returns how long to wait after a transaction of so many rows. What a slow server has kept from being written in
// time is made up for, up to a second of it.
func (w *writer) wait(rows int) time.Duration {
	if w.c.cfg.Rate == 0 {
		return 0
	}
	if longest := time.Now().Add(-time.Second); w.due.Before(longest) {
		w.due = longest
	}
	w.due = w.due.Add(time.Duration(rows*w.c.cfg.Writers) * time.Second / time.Duration(w.c.cfg.Rate))
	return time.Until(w.due)
}

// permanent says whether the server has refused a statement for what it says, not because it is going down (class 57),
// is short of connections (53), read-only for the moment (25), or has lost one of two that wait for each other (40).
func permanent(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Code[:2] {
	case "57", "53", "40", "25", "08":
		return false
	}
	return true
}

func (w *writer) disconnect() {
	if w.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = w.conn.Close(ctx)
		w.conn = nil
	}
}

// transaction writes one transaction, and notes the WAL position once it knows that the transaction is committed. It is
// not broken off by the end of ctx: a commit that is on its way would be missed by the first look at the counters.
func (w *writer) transaction(ctx context.Context, rows int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if w.conn == nil {
		conn, err := pgx.Connect(ctx, w.c.cfg.URL)
		if err != nil {
			return err
		}
		w.conn = conn
	}
	rollBack := w.random.Float64() < w.c.cfg.Rollbacks
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return err
	}
	numbers, err := w.fill(ctx, tx, rows, rollBack)
	if err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	if rollBack {
		return tx.Rollback(ctx)
	}
	if err := tx.Commit(ctx); err != nil {
		return err // Nobody knows what became of it; the counters do.
	}
	var wal uint64
	const position = `SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint`
	if err := w.conn.QueryRow(ctx, position).Scan(&wal); err != nil {
		return err
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	for key, number := range numbers {
		w.c.notes[key] = append(w.c.notes[key], note{number: number, wal: wal})
	}
	return nil
}

// fill writes the rows of a transaction and returns the last number of each key.
func (w *writer) fill(ctx context.Context, tx pgx.Tx, rows int, rollBack bool) (map[string]int64, error) {
	kinds := map[string]string{}
	for range min(rows, max(4, rows/10), w.c.cfg.Keys) {
		key, kind := w.c.key(w.random.IntN(w.c.cfg.Keys))
		kinds[key] = kind
	}
	numbers, keys, err := lock(ctx, tx, kinds)
	if err != nil {
		return nil, err
	}
	batch, transaction := &pgx.Batch{}, newID()
	insert := func(key string, number int64, rolledBack bool) {
		e := w.event(key, number, transaction, rows)
		e.RolledBack = rolledBack
		w.insert(batch, kinds[key], e)
	}
	for range rows {
		key := keys[w.random.IntN(len(keys))]
		if !rollBack && w.random.Float64() < w.c.cfg.Rollbacks {
			batch.Queue("SAVEPOINT attempt")
			insert(key, numbers[key]+1, true)
			batch.Queue("ROLLBACK TO SAVEPOINT attempt")
		}
		numbers[key]++
		if poison := int(w.c.poison.Load()); poison > 0 && !rollBack && w.random.IntN(poison) == 0 {
			w.insertPoison(batch, kinds[key], w.event(key, numbers[key], transaction, rows))
			continue
		}
		insert(key, numbers[key], rollBack)
	}
	for key, number := range numbers {
		batch.Queue("UPDATE public.checker_counter SET number = $2 WHERE key = $1", key, number)
	}
	return numbers, tx.SendBatch(ctx, batch).Close()
}

// lock locks the counters of the keys, in one order for all transactions so that none waits for another in a circle.
func lock(ctx context.Context, tx pgx.Tx, kinds map[string]string) (numbers map[string]int64, keys []string, err error) {
	for key := range kinds {
		keys = append(keys, key)
	}
	rows, err := tx.Query(ctx,
		`SELECT key, number FROM public.checker_counter WHERE key = ANY($1) ORDER BY key FOR UPDATE`, keys)
	if err != nil {
		return nil, nil, err
	}
	numbers, keys = map[string]int64{}, nil
	var key string
	var number int64
	_, err = pgx.ForEachRow(rows, []any{&key, &number}, func() error {
		numbers[key], keys = number, append(keys, key)
		return nil
	})
	return numbers, keys, err
}

func (w *writer) event(key string, number int64, transaction string, rows int) event {
	e := newEvent(newID(), key, number, w.c.cfg.Padding)
	e.Transaction, e.Rows = transaction, rows
	return e
}

// insertPoison writes an event that is too large, or that is for a topic that cannot be.
func (w *writer) insertPoison(batch *pgx.Batch, kind string, e event) {
	e.Poison = true
	if w.c.cfg.PoisonBytes > 0 && w.random.IntN(5) == 0 {
		e.Padding = padding(e.Key, e.Number, w.c.cfg.PoisonBytes)
	} else {
		kind += "?"
	}
	w.insert(batch, kind, e)
}

func (w *writer) insert(batch *pgx.Batch, kind string, e event) {
	payload, _ := json.Marshal(e) // Strings and numbers only: never fails.
	batch.Queue("INSERT INTO "+w.c.cfg.Table+" (id, aggregatetype, aggregateid, type, payload) VALUES ($1, $2, $3, 'written', $4)",
		e.ID, kind, e.Key, payload)
}

// newID returns a random UUID.
func newID() string {
	var id [16]byte
	_, _ = crand.Read(id[:]) // Never fails.
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
