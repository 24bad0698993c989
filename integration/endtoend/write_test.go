package endtoend_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// counters say how many events of a key are committed: each event takes its number from there, in its transaction.
const counters = `CREATE TABLE public.counter (key text PRIMARY KEY, n bigint NOT NULL DEFAULT 0);
	INSERT INTO public.counter (key) SELECT 'key' || k FROM generate_series(0, 99) AS k`

const keys, writers = 100, 3

// write commits events until end is called, which returns how many of each key there are.
func (l *lab) write() (end func() map[string]int64) {
	ctx, stop := context.WithCancel(l.t.Context())
	var all sync.WaitGroup
	for i := range writers {
		random := rand.New(rand.NewPCG(*seed, uint64(i)+1))
		all.Go(func() {
			conn, err := pgx.Connect(l.t.Context(), l.outbox.URL)
			if err != nil {
				l.t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				n, err := transaction(l.t.Context(), conn, random)
				if err != nil {
					l.t.Error(err)
					return
				}
				_ = testenv.Pause(ctx, time.Duration(n*writers)*time.Second/time.Duration(*rate))
			}
		})
	}
	l.t.Cleanup(stop)
	return func() map[string]int64 {
		stop()
		all.Wait()
		committed := map[string]int64{}
		rows, err := l.outbox.Conn().Query(l.t.Context(), `SELECT key, n FROM public.counter WHERE n > 0`)
		if err != nil {
			l.t.Fatal(err)
		}
		var key string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&key, &n}, func() error {
			committed[key] = n
			return nil
		}); err != nil {
			l.t.Fatal(err)
		}
		return committed
	}
}

// transaction writes one to five events; one transaction in ten is rolled back. It returns how many events it tried.
func transaction(ctx context.Context, conn *pgx.Conn, random *rand.Rand) (int, error) {
	chosen := random.Perm(keys)[:1+random.IntN(5)]
	slices.Sort(chosen) // Else two transactions might wait for each other.
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // Does nothing after the commit.
	for _, k := range chosen {
		key := fmt.Sprint("key", k)
		var e consumer.Event
		if err := tx.QueryRow(ctx, `UPDATE public.counter SET n = n + 1 WHERE key = $1 RETURNING n`, key).Scan(&e.N); err != nil {
			return 0, err
		}
		payload, err := json.Marshal(e)
		if err != nil {
			return 0, err
		}
		if _, err := outbox.Insert(ctx, tx, outbox.Event{
			AggregateType: types[k%len(types)], AggregateID: key, Type: "Happened", Payload: payload,
		}); err != nil {
			return 0, err
		}
	}
	if random.IntN(10) == 0 {
		return len(chosen), tx.Rollback(ctx)
	}
	return len(chosen), tx.Commit(ctx)
}
