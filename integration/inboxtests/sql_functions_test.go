package inboxtests

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// sqlDB is a database with the inbox, as a program in another language has it.
type sqlDB struct {
	*testenv.Env

	t *testing.T
}

// onBoth runs a test on the oldest PostgreSQL that is supported and on the newest.
func onBoth(t *testing.T, test func(t *testing.T, d *sqlDB)) {
	t.Helper()
	for _, major := range []int{14, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			d := &sqlDB{testenv.New(t, testenv.NoKafka(), testenv.PostgresMajor(major)), t}
			if err := migrateInbox(t.Context(), d.URL); err != nil {
				t.Fatal(err)
			}
			test(t, d)
		})
	}
}

// want compares what a query gives as text.
func (d *sqlDB) want(want, sql string, args ...any) {
	d.t.Helper()
	if got := d.Text(sql, args...); got != want {
		d.t.Errorf("%s = %q, want %q", sql, got, want)
	}
}

func (d *sqlDB) connect(change ...func(*url.URL)) *pgx.Conn {
	d.t.Helper()
	u, err := url.Parse(d.URL)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, c := range change {
		c(u)
	}
	conn, err := pgx.Connect(d.t.Context(), u.String())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// A second claim waits for the first one's transaction. At READ COMMITTED it is then a duplicate, and its transaction
// goes on; at stricter levels it is a serialization failure, and a duplicate when the transaction is run again. When the
// first is rolled back, the second is the first, at every level.
func TestSQLClaim(t *testing.T) {
	t.Parallel()
	onBoth(t, sqlClaim)
}

func sqlClaim(t *testing.T, d *sqlDB) {
	t.Helper()
	for i, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, commits := range []bool{true, false} {
			id := fmt.Sprintf("m-%d-%v", i, commits)
			one, two := d.begin(level), d.begin(level)
			if first, err := claim(t.Context(), one, id); err != nil || !first {
				t.Fatalf("%s: the first claim = %v, %v", id, first, err)
			}
			type answer struct {
				first bool
				err   error
			}
			second := make(chan answer, 1)
			go func() {
				first, err := claim(t.Context(), two, id)
				second <- answer{first, err}
			}()
			testenv.Until(t, 40*time.Second, func(context.Context) error {
				if d.Text(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) != "1" {
					return errors.New("the second claim does not wait")
				}
				return nil
			})
			end := one.Rollback
			if commits {
				end = one.Commit
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := <-second
			strict := commits && level != pgx.ReadCommitted
			if strict != (sqlState(got.err) == "40001") || got.first == commits {
				t.Errorf("%s %v: the second claim = %v, %v", level, commits, got.first, got.err)
			}
			if !strict { // its transaction goes on
				if _, err := two.Exec(t.Context(), `SELECT 1`); err != nil {
					t.Errorf("%s: after the claim: %v", level, err)
				}
			}
			_ = two.Rollback(t.Context())
			if again, err := claim(t.Context(), d.begin(level), id); err != nil || again == commits {
				t.Errorf("%s %v: a claim afterwards = %v, %v", level, commits, again, err)
			}
		}
	}
}

func (d *sqlDB) begin(level pgx.TxIsoLevel) pgx.Tx {
	d.t.Helper()
	tx, err := d.connect().BeginTx(d.t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		d.t.Fatal(err)
	}
	return tx
}

func claim(ctx context.Context, tx pgx.Tx, id string) (first bool, err error) {
	err = tx.QueryRow(ctx, `SELECT public.cdc_inbox_claim('shipping', $1)`, id).Scan(&first)
	return first, err
}

const sqlBury = `SELECT public.cdc_inbox_dead_letter('shipping', $1, 'orders', 3, 7, $2, '\x00ff', ARRAY['id', 'x']::bytea[],
	ARRAY['i', NULL]::bytea[], 'max_deliveries', repeat('ä', 2000), true)`

// Failures are counted, end as a dead letter that the key waits behind, and a replay counts anew.
func TestSQLDeadLetter(t *testing.T) {
	t.Parallel()
	onBoth(t, sqlDeadLetter)
}

func sqlDeadLetter(t *testing.T, d *sqlDB) {
	t.Helper()
	for _, n := range []string{"1", "2"} {
		d.want(n, `SELECT public.cdc_inbox_failed('shipping', 'm', 'no')`)
	}
	d.want("1", `SELECT public.cdc_inbox_failed('billing', 'm', NULL)`)
	d.want("false", `SELECT public.cdc_inbox_waits('shipping', 'orders', 'k')`)
	d.want("true", sqlBury, "m", []byte("k"))
	d.want("false", sqlBury, "m", []byte("k"))
	d.want("dead 2 1000 \\x00ff 2 t", `SELECT concat_ws(' ', state, deliveries, length(error), value, cardinality(header_values), header_values[2] IS NULL)
		FROM public.cdc_relay_inbox_letter`)
	d.want("billing", `SELECT string_agg(consumer, ' ') FROM public.cdc_relay_inbox_attempt`)
	for args, want := range map[string]string{"'shipping', 'orders', 'k'": "true", "'shipping', 'orders', 'l'": "false", "'shipping', 'other', 'k'": "false", "'billing', 'orders', 'k'": "false", "'shipping', 'orders', NULL": "false"} {
		d.want(want, `SELECT public.cdc_inbox_waits(`+args+`)`)
	}
	d.want("true", sqlBury, "keyless", nil)
	d.want("false", `SELECT blocks FROM public.cdc_relay_inbox_letter WHERE message_id = 'keyless'`)

	d.Exec(`SELECT public.cdc_inbox_failed('shipping', 'm', 'again')`)
	d.want("1", `SELECT count(*) FROM public.cdc_inbox_replay(ARRAY[1, 999])`)
	d.want("0", `SELECT count(*) FROM public.cdc_inbox_replay(ARRAY[1, 999])`)
	d.want("due 0 1", `SELECT concat_ws(' ', state, deliveries, replays) FROM public.cdc_relay_inbox_letter WHERE message_id = 'm'`)
	d.want("0", `SELECT count(*) FROM public.cdc_relay_inbox_attempt WHERE consumer = 'shipping'`)
	d.want("true", `SELECT public.cdc_inbox_waits('shipping', 'orders', 'k')`)

	// The inbox row was pruned, the letter was not: the message is buried again.
	d.Exec(`UPDATE public.cdc_relay_inbox_letter SET state = 'processed', value = NULL`)
	d.Exec(`DELETE FROM public.cdc_relay_inbox`)
	d.want("true", sqlBury, "m", []byte("k"))
	d.want("dead \\x00ff", `SELECT concat_ws(' ', state, value) FROM public.cdc_relay_inbox_letter WHERE message_id = 'm'`)
}

// An id that is no id claims nothing, and a dead letter has what its headers say, as far as it is text.
func TestSQLHeaders(t *testing.T) {
	t.Parallel()
	onBoth(t, sqlHeaders)
}

func sqlHeaders(t *testing.T, d *sqlDB) {
	t.Helper()
	for _, id := range []string{"''", "NULL"} {
		if _, err := d.connect().Exec(t.Context(), `SELECT public.cdc_inbox_claim('shipping', `+id+`)`); sqlState(err) != "22023" || !strings.Contains(err.Error(), "id is empty") {
			t.Errorf("claim of %s = %v", id, err)
		}
	}
	for values, want := range map[string]string{
		`ARRAY['a', 'b', 'c']`:    "b", // the last of two
		`ARRAY['a', '\xff', 'c']`: "", `ARRAY['a', '\x00', 'c']`: "", `ARRAY['a', NULL, 'c']`: "", `'{}'`: "", `NULL`: "",
	} {
		d.want(want, `SELECT public.cdc_inbox_header(ARRAY['type', 'type', 'id']::bytea[], `+values+`::bytea[], 'type')`)
	}
	d.want("", `SELECT public.cdc_inbox_header('{}', '{}', 'type')`)
	const bury = `SELECT public.cdc_inbox_dead_letter('shipping', $1, 'orders', 3, 7, 'k', NULL, ARRAY['type', 'aggregateversion']::bytea[],
		ARRAY['OrderPlaced', convert_to($2, 'UTF8')]::bytea[], 'permanent', '', false, '2026-12-01 08:00:00+00')`
	for id, version := range map[string]string{"a": "42", "b": "-1", "c": "4.2", "d": "99999999999999999999", "e": ""} {
		d.want("true", bury, id, version)
	}
	d.want("a OrderPlaced 42 08:00:00, b OrderPlaced -1 08:00:00, c OrderPlaced 08:00:00, d OrderPlaced 08:00:00, e OrderPlaced 08:00:00",
		`SELECT string_agg(concat_ws(' ', message_id, type, version, (record_time AT TIME ZONE 'UTC')::time), ', ' ORDER BY message_id)
		   FROM public.cdc_relay_inbox_letter`)
}

// A lane is the same in SQL as in the processor.
func TestSQLLane(t *testing.T) {
	t.Parallel()
	onBoth(t, sqlLane)
}

func sqlLane(t *testing.T, d *sqlDB) {
	t.Helper()
	d.want("true", `SELECT public.cdc_inbox_lane('größe', '\x00ff') = sha256(convert_to('größe', 'UTF8') || '\x0000ff'::bytea)`)
	d.want("", `SELECT public.cdc_inbox_lane('orders', NULL)`)
	d.want("true", `SELECT public.cdc_inbox_lane('orders', '') IS NOT NULL`)
}

// What is given up is out of the way, and its version is passed, also where it was the first.
func TestSQLDiscard(t *testing.T) {
	t.Parallel()
	onBoth(t, sqlDiscard)
}

func sqlDiscard(t *testing.T, d *sqlDB) {
	t.Helper()
	for i, key := range []string{"new", "old", "ahead", "none"} {
		d.Exec(sqlBury, key, []byte(key))
		d.Exec(`UPDATE public.cdc_relay_inbox_letter SET version = $2 WHERE message_id = $1`, key, []any{5, 5, 5, nil}[i])
	}
	d.Exec(`INSERT INTO public.cdc_relay_inbox_sequence (consumer, lane, version)
		VALUES ('shipping', public.cdc_inbox_lane('orders', 'old'), 4), ('shipping', public.cdc_inbox_lane('orders', 'ahead'), 9)`)
	const discard = `SELECT count(*) FROM public.cdc_inbox_discard(ARRAY(SELECT id FROM public.cdc_relay_inbox_letter))`
	d.want("4", discard)
	d.want("0", discard)
	d.want("ahead 9, new 5, old 5", `SELECT string_agg(concat_ws(' ', convert_from(l.record_key, 'UTF8'), s.version), ', ' ORDER BY l.record_key)
		FROM public.cdc_relay_inbox_sequence s JOIN public.cdc_relay_inbox_letter l USING (consumer, lane)`)
	d.want("discarded", `SELECT DISTINCT outcome FROM public.cdc_relay_inbox`)
	d.want("false", `SELECT public.cdc_inbox_waits('shipping', 'orders', 'new')`)
}

// What waits is neither forgotten nor pruned, and one pruner of a consumer works at a time.
func TestSQLForgetAndPrune(t *testing.T) {
	t.Parallel()
	onBoth(t, sqlForgetAndPrune)
}

func sqlForgetAndPrune(t *testing.T, d *sqlDB) {
	t.Helper()
	d.Exec(sqlBury, "dead", []byte("k"))
	d.Exec(`SELECT public.cdc_inbox_claim('shipping', 'm')`)
	if _, err := d.connect().Exec(t.Context(), `SELECT public.cdc_inbox_forget('shipping', 'dead')`); sqlState(err) != "55000" || !strings.Contains(err.Error(), "dead letter") {
		t.Errorf("forget of a dead letter = %v", err)
	}
	d.want("false", `SELECT public.cdc_inbox_forget('billing', 'm')`)
	d.want("true", `SELECT public.cdc_inbox_forget('shipping', 'm')`)
	d.want("true", `SELECT public.cdc_inbox_claim('shipping', 'm')`)

	d.Exec(`INSERT INTO public.cdc_relay_inbox (message_id, consumer, settled_at)
		SELECT n::text, c, now() - n * interval '1 day' FROM generate_series(1, 10) n, unnest(ARRAY['shipping', 'billing']) c`)
	d.Exec(`UPDATE public.cdc_relay_inbox SET settled_at = now() - interval '20 days' WHERE message_id = 'dead'`)
	other := d.begin(pgx.ReadCommitted)
	const prune = `SELECT public.cdc_inbox_prune('shipping', now() - interval '132 hours', 3)`
	if _, err := other.Exec(t.Context(), prune); err != nil {
		t.Fatal(err)
	}
	d.want("busy", `SELECT coalesce(p::text, 'busy') FROM (`+prune+` AS p) one`)
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.want("2", prune)
	d.want("billing 10, shipping 5", `SELECT string_agg(concat_ws(' ', consumer, n), ', ' ORDER BY consumer)
		FROM (SELECT consumer, count(*) AS n FROM public.cdc_relay_inbox WHERE message_id ~ '^\d' GROUP BY consumer) k`)
	d.want("dead", `SELECT outcome FROM public.cdc_relay_inbox WHERE message_id = 'dead'`)
}

// Whoever may only log in has no part in it; the documented grants let a role consume.
func TestSQLRoles(t *testing.T) {
	t.Parallel()
	onBoth(t, sqlRoles)
}

func sqlRoles(t *testing.T, d *sqlDB) {
	t.Helper()
	role := d.Slot + "_consumer"
	d.Exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), d.URL)
		if err != nil {
			return // the server is gone, and the role with it
		}
		defer conn.Close(context.Background())
		_, _ = conn.PgConn().Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role).ReadAll()
	})
	conn := d.connect(func(u *url.URL) { u.User = url.UserPassword(role, "secret") })
	statements := []string{
		`SELECT public.cdc_inbox_claim('c', 'm')`, `SELECT public.cdc_inbox_waits('c', 't', 'k')`, `SELECT public.cdc_inbox_failed('c', 'n', '')`,
		`SELECT public.cdc_inbox_dead_letter('c', 'n', 't', 0, 0, 'k', NULL, '{}', '{}', 'permanent', '')`,
		`SELECT public.cdc_inbox_replay(ARRAY[1])`, `SELECT public.cdc_inbox_discard(ARRAY[2])`,
		`SELECT public.cdc_inbox_forget('c', 'm')`, `SELECT public.cdc_inbox_prune('c', now())`,
	}
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
			t.Errorf("a role that may only log in: %s = %v", sql, err)
		}
	}
	d.Exec(`GRANT USAGE ON SCHEMA public TO ` + role)
	d.Exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON public.cdc_relay_inbox, public.cdc_relay_inbox_attempt, public.cdc_relay_inbox_letter,
		public.cdc_relay_inbox_sequence, public.cdc_relay_inbox_consumer TO ` + role)
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Errorf("with the grants: %s = %v", sql, err)
		}
	}
}
