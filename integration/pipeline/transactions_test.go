package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A transaction or savepoint that is rolled back sends nothing, also when the server has spilled it to
// disk while decoding; a row that is deleted in its own transaction is sent.
func TestRollbacks(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	// The walsender reads the setting when it starts.
	env.Exec(`ALTER DATABASE ` + strings.TrimSuffix(env.Prefix, ".") + ` SET logical_decoding_work_mem = '64kB'`)
	r := start(t, env, nil)
	row := func(from, to int) string {
		return fmt.Sprintf(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
			SELECT 'order', 'k', 'T', jsonb_build_object('n', g) FROM generate_series(%d, %d) g;`, from, to)
	}
	env.Exec(`BEGIN;` + row(900, 950) + `ROLLBACK`)
	env.Exec(`BEGIN;` + row(1, 500) + `SAVEPOINT s;` + row(501, 1000) + `ROLLBACK TO s;` + row(501, 505) + `COMMIT`)
	env.Exec(`DO $$ BEGIN
		BEGIN ` + row(700, 800) + ` RAISE EXCEPTION 'no'; EXCEPTION WHEN others THEN NULL; END;
		` + row(506, 506) + ` END $$`)
	env.Exec(`BEGIN;` + row(507, 507) + `DELETE FROM public.outbox WHERE payload ->> 'n' = '507'; COMMIT`)
	env.Exec(row(508, 508))
	got := scene.Values(env.Consume(topic, 508, patience))
	if want := counted(1, 508); !slices.Equal(got, want) {
		t.Errorf("got %d records that differ from the %d committed rows", len(got), len(want))
	}
	settledAt(t, env)
	untilTrue(t, env, fmt.Sprintf(`SELECT spill_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = '%s'`, env.Slot))
	stop(t, r)
}

// Transactions arrive in the order of their commits, whatever the order of their inserts.
func TestInterleavedTransactions(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	r := start(t, env, nil)
	sessions := []*pgx.Conn{env.Conn(), env.Conn(), env.Conn()}
	do := func(n int, sql string, args ...any) {
		t.Helper()
		if _, err := sessions[n].Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	row := func(tx, row int) string { return fmt.Sprintf(`{"tx": %d, "row": %d}`, tx, row) }
	env.Exec(`ALTER TABLE public.outbox ALTER COLUMN payload TYPE json`) // keeps the spelling
	for n := range 3 {
		do(n, `BEGIN`)
		do(n, insert, "order", "k", "T", row(n, 1))
	}
	for _, n := range []int{2, 0, 1} {
		do(n, insert, "order", "k", "T", row(n, 2))
	}
	for _, n := range []int{1, 2, 0} {
		do(n, `COMMIT`)
	}
	var want []string
	for _, n := range []int{1, 2, 0} {
		want = append(want, row(n, 1), row(n, 2))
	}
	if got := scene.Values(env.Consume(topic, 6, patience)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	stop(t, r)
}

// A large transaction arrives whole and in order, and is confirmed as a whole.
func TestLargeTransaction(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	r := start(t, env, nil)
	const rows = 100_000
	numbers(env, 1, rows)
	got := scene.Values(env.Consume(topic, rows, time.Minute))
	if !slices.Equal(got, counted(1, rows)) {
		t.Errorf("%d records, not the rows 1 to %d in order", len(got), rows)
	}
	settledAt(t, env)
	stop(t, r)
}

// A clean stop loses nothing and repeats nothing, however often and whenever it comes.
func TestCleanRestartsRepeatNothing(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	r := start(t, env, nil)
	const rounds = 8
	for round := range rounds {
		// The stop comes while these are on their way.
		for n := range 50 {
			numbers(env, round*100+2*n+1, round*100+2*n+2)
		}
		stop(t, r)
		if round%2 == 1 {
			stop(t, start(t, env, nil)) // and once with nothing to do
		}
		r = start(t, env, nil)
	}
	settledAt(t, env)
	got := scene.Values(env.Consume(topic, rounds*100, patience))
	if want := counted(1, rounds*100); !slices.Equal(got, want) {
		t.Errorf("%d records, want %d without repeats", len(got), len(want))
	}
	stop(t, r)
}

// An update, a delete or a truncate of the outbox is no event, also with a publication that sends them.
func TestMutationsAreNoEvents(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	if res := env.Run("migrate", "up", "--config", env.WriteConfig(nil)); res.Code != 0 {
		t.Fatal(res.Stderr)
	}
	env.Exec(`CREATE PUBLICATION ` + env.Publication + ` FOR TABLE public.outbox`)
	r := start(t, env, nil)
	numbers(env, 1, 5)
	env.Exec(`UPDATE public.outbox SET type = 'changed'`)
	env.Exec(`DELETE FROM public.outbox WHERE payload ->> 'n' = '3'`)
	env.Exec(`TRUNCATE public.outbox`)
	numbers(env, 6, 10)
	if got := scene.Values(env.Consume(topic, 10, patience)); !slices.Equal(got, counted(1, 10)) {
		t.Errorf("got %q", got)
	}
	settledAt(t, env)
	_, metrics, err := r.Get(t.Context(), "/metrics")
	for _, want := range []string{`{op="update"} 5`, `{op="delete"} 1`, `{op="truncate"} 1`} {
		if err != nil || !strings.Contains(metrics, "cdc_relay_mutations_ignored_total"+want) {
			t.Errorf("metrics lack %s (%v)", want, err)
		}
	}
	if !strings.Contains(r.Output(), "also publishes updates, deletes or truncates") {
		t.Error("no warning about a publication that sends more than inserts")
	}
	stop(t, r)
}
