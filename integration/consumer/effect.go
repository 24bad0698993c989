package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
)

// schema is the table of effects. Nothing but the inbox keeps a row from being written twice.
const schema = `CREATE TABLE public.effect (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	consumer text NOT NULL, message_id text NOT NULL, key text NOT NULL, n bigint NOT NULL, worker int NOT NULL)`

// Effect is what an event has led to.
type Effect struct {
	Consumer, MessageID, Key string
	N                        int64
	Worker                   int
}

// Prepare gives a database the inbox and the table of effects.
func Prepare(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	if _, err := migrations.Up(t.Context(), conn, migrations.Options{Only: []string{"cdc_relay_inbox"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
}

// Write writes an effect.
func Write(ctx context.Context, tx pgx.Tx, e Effect) error {
	_, err := tx.Exec(ctx, `INSERT INTO public.effect (consumer, message_id, key, n, worker) VALUES ($1, $2, $3, $4, $5)`,
		e.Consumer, e.MessageID, e.Key, e.N, e.Worker)
	return err
}

// Effects returns the effects of a consumer in the order in which they were written.
func Effects(ctx context.Context, conn *pgx.Conn, name string) ([]Effect, error) {
	rows, err := conn.Query(ctx, `SELECT consumer, message_id, key, n, worker FROM public.effect WHERE consumer = $1 ORDER BY id`, name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Effect])
}

// Judge compares effects with how many events of each key were committed: each key's numbers must read 1, 2, 3, … up to
// that, and nothing else may be there. It names the first ten faults.
func Judge(effects []Effect, committed map[string]int64) error {
	var faults []error
	last := map[string]int64{}
	for _, e := range effects {
		switch want := last[e.Key] + 1; {
		case e.N < want:
			faults = append(faults, fmt.Errorf("%s: event %d has a second effect, by worker %d", e.Key, e.N, e.Worker))
		case e.N > want:
			faults = append(faults, fmt.Errorf("%s: event %d comes behind %d", e.Key, e.N, last[e.Key]))
		}
		last[e.Key] = max(last[e.Key], e.N)
	}
	for _, key := range slices.Sorted(maps.Keys(committed)) {
		if last[key] < committed[key] {
			faults = append(faults, fmt.Errorf("%s: %d of %d events have an effect", key, last[key], committed[key]))
		}
	}
	for key, n := range last {
		if n > committed[key] {
			faults = append(faults, fmt.Errorf("%s: event %d has an effect, and %d were committed", key, n, committed[key]))
		}
	}
	if more := len(faults) - 10; more > 0 {
		faults = append(faults[:10], fmt.Errorf("and %d more", more))
	}
	return errors.Join(faults...)
}
