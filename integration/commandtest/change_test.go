package commandtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// running is a relay that has sent one row of type order.
type running struct {
	*testenv.Relay
	env   *testenv.Env
	topic string
}

func newRunning(t *testing.T, settings testenv.Settings, opts ...testenv.Option) running {
	t.Helper()
	env := testenv.New(t, opts...)
	r := running{env: env, topic: env.CreateTopic("order", 1)}
	r.Relay = env.StartRelay(testenv.RelayOptions{Settings: settings, Args: []string{"--init"}})
	r.WaitReady(patience)
	insert(t, env, "first")
	wantKeys(t, env, r.topic, "first")
	return r
}

// keeps fails the test when the halted relay has let go of the slot or has confirmed up to lsn.
func (r running) keeps(t *testing.T, lsn string) {
	t.Helper()
	pass(t, 1500*time.Millisecond) // longer than from status to status
	if slot(t, r.env, "active") != "true" {
		t.Error("the slot is let go")
	}
	notPast(t, r.env, lsn)
}

// A needed column that is renamed stops the relay at the first row without it. Nothing is confirmed past that row; named
// in the configuration, the new column carries on where it stopped.
func TestNeededColumnRenamed(t *testing.T) {
	t.Parallel()
	r := newRunning(t, nil)
	env := r.env
	env.Exec(`ALTER TABLE public.outbox RENAME payload TO body`)
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, body) VALUES ('order', 'second', 'T', '{}')`)
	end := env.Text(`SELECT pg_current_wal_insert_lsn()`)
	notReady(t, r.Relay, 10*time.Second, "public.outbox", "payload", "outbox.columns")
	r.keeps(t, end)
	if body := answers(t, r.Relay, 10*time.Second, 503, "has no column"); strings.Contains(body, "column list") {
		t.Errorf("blames a column list that does not exist: %s", body)
	}
	stop(t, r.Relay) // also while halted
	notPast(t, env, end)
	r.Relay = env.StartRelay(testenv.RelayOptions{Settings: testenv.Settings{"outbox.columns": map[string]string{"payload": "body"}}})
	r.WaitReady(patience)
	wantKeys(t, env, r.topic, "first second")
	stop(t, r.Relay)
}

// Renamed back before a row was written without it, the column was never missed.
func TestNeededColumnRenamedAndBack(t *testing.T) {
	t.Parallel()
	r := newRunning(t, nil)
	env := r.env
	env.Exec(`ALTER TABLE public.outbox RENAME payload TO body`)
	notReady(t, r.Relay, 10*time.Second, "public.outbox", "payload")
	env.Exec(`ALTER TABLE public.outbox RENAME body TO payload`)
	r.WaitReady(10 * time.Second)
	insert(t, env, "second")
	wantKeys(t, env, r.topic, "first second")
	if strings.Contains(r.Output(), "may be missing from the topics") {
		t.Errorf("speaks of missing events although none are:\n%s", r.Output())
	}
	stop(t, r.Relay)
}

// A column that may be absent comes and goes, also within a transaction, and columns that are new, in other places or
// of no interest change nothing.
func TestOtherColumnsChange(t *testing.T) {
	t.Parallel()
	r := newRunning(t, nil)
	env := r.env
	conn := env.Conn().PgConn()
	const into = `INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload`
	if _, err := conn.Exec(t.Context(), into+`, headers) VALUES ('order', '1', 'T', '{}', '{"h": "1"}');
		ALTER TABLE public.outbox DROP headers, ADD a_first int DEFAULT 7; `+into+`, a_first) VALUES ('order', '2', 'T', '{}', 8);
		ALTER TABLE public.outbox ADD headers jsonb, DROP type; INSERT INTO public.outbox (aggregatetype, aggregateid, payload, headers)
		VALUES ('order', '3', '{}', '{"h": "3"}')`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	env.Exec(`ALTER TABLE public.outbox RENAME a_first TO type`)
	env.Exec(`ALTER TABLE public.outbox ALTER type TYPE text`)
	env.Exec(into + `) VALUES ('order', '4', 'U', '{}')`)
	wantKeys(t, env, r.topic, "first 1 2 3 4")
	for i, want := range []string{"OrderPlaced -", "T 1", "T -", "- 3", "U -"} {
		rec := env.Consume(r.topic, 5, patience)[i]
		var got []string
		for _, name := range []string{"type", "h"} {
			value, ok := rec.Header(name)
			if !ok {
				value = "-"
			}
			got = append(got, value)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("record %d has type and h %q, want %q", i, got, want)
		}
	}
	r.WaitReady(patience)
	stop(t, r.Relay)
}

// A table that is taken out of the publication goes missing without a word from the server; the relay says so within
// seconds, with the range, and goes on when it is back.
func TestTableLeavesPublication(t *testing.T) {
	t.Parallel()
	r := newRunning(t, nil)
	env := r.env
	env.Exec(`ALTER PUBLICATION ` + env.Publication + ` DROP TABLE public.outbox`)
	insert(t, env, "missing")
	notReady(t, r.Relay, 10*time.Second, "does not publish table public.outbox", "rows committed after ", "ADD TABLE")
	end := insert(t, env, "missing, too")
	r.keeps(t, end)
	env.Exec(`ALTER PUBLICATION ` + env.Publication + ` ADD TABLE public.outbox`)
	r.WaitReady(10 * time.Second)
	insert(t, env, "second")
	wantKeys(t, env, r.topic, "first second")
	r.WaitOutput("may be missing from the topics", time.Second)
	stop(t, r.Relay)
}

// The publication itself may go. Servers before 18 then fail at the next row, later ones send it not.
func TestPublicationDropped(t *testing.T) {
	t.Parallel()
	for name, major := range map[string]int{"oldest": 14, "newest": 18} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRunning(t, nil, testenv.PostgresMajor(major))
			env := r.env
			env.Exec(`DROP PUBLICATION ` + env.Publication)
			end := insert(t, env, "missing")
			notReady(t, r.Relay, 10*time.Second, "publication "+env.Publication, "not exist")
			pass(t, 5*time.Second)
			notPast(t, env, end)
			notReady(t, r.Relay, 10*time.Second, "publication "+env.Publication, "not exist")
			stop(t, r.Relay)
			notPast(t, env, end)
			// init knows that a new publication would be too young.
			refused(t, env.Run("init", "--config", env.WriteConfig(nil)), 78, "a slot cannot decode through a younger publication",
				"pg_replication_slot_advance")
			env.Exec(`CREATE PUBLICATION ` + env.Publication + ` FOR TABLE public.outbox WITH (publish = 'insert')`)
			env.Exec(`SELECT pg_replication_slot_advance('` + env.Slot + `', pg_current_wal_lsn())`)
			r.Relay = env.StartRelay(testenv.RelayOptions{})
			r.WaitReady(patience)
			insert(t, env, "second")
			wantKeys(t, env, r.topic, "first second")
			stop(t, r.Relay)
		})
	}
}

// A table that nobody configured may be an outbox table with another name: the relay stops before its first row.
func TestStrangeTable(t *testing.T) {
	t.Parallel()
	r := newRunning(t, nil)
	env := r.env
	env.Exec(`CREATE TABLE public.stranger (n int)`)
	env.Exec(`ALTER PUBLICATION ` + env.Publication + ` ADD TABLE public.stranger`)
	env.Exec(`INSERT INTO public.stranger VALUES (1)`)
	end := insert(t, env, "second")
	notReady(t, r.Relay, 10*time.Second, "public.stranger", "outbox.ignored_tables")
	r.keeps(t, end)
	stop(t, r.Relay)
	ignoring := testenv.Settings{"outbox.ignored_tables": "stranger"}
	r.Relay = env.StartRelay(testenv.RelayOptions{Settings: ignoring})
	r.WaitReady(patience)
	env.Exec(`INSERT INTO public.stranger VALUES (2)`)
	insert(t, env, "third")
	wantKeys(t, env, r.topic, "first second third")
	stop(t, r.Relay)
}

// A renamed outbox is still published, under a name that the relay does not know; nothing of it is passed over.
func TestOutboxRenamed(t *testing.T) {
	t.Parallel()
	r := newRunning(t, nil)
	env := r.env
	env.Exec(`ALTER TABLE public.outbox RENAME TO events`)
	env.Exec(`INSERT INTO public.events (aggregatetype, aggregateid, type, payload) VALUES ('order', 'second', 'T', '{}')`)
	end := env.Text(`SELECT pg_current_wal_insert_lsn()`)
	body := notReady(t, r.Relay, 10*time.Second, "public.events")
	t.Log(body)
	r.keeps(t, end)
	stop(t, r.Relay)
	r.Relay = env.StartRelay(testenv.RelayOptions{Settings: testenv.Settings{"outbox.table": "events"}})
	r.WaitReady(patience)
	wantKeys(t, env, r.topic, "first second")
	stop(t, r.Relay)
}

// A halt is said once, not once per attempt.
func TestHaltIsSaidOnce(t *testing.T) {
	t.Parallel()
	r := newRunning(t, nil)
	before := strings.Count(r.Output(), "\n")
	r.env.Exec(`ALTER PUBLICATION ` + r.env.Publication + ` DROP TABLE public.outbox`)
	notReady(t, r.Relay, 10*time.Second, "does not publish")
	pass(t, 8*time.Second)
	if n := strings.Count(r.Output(), "\n") - before; n != 1 {
		t.Errorf("%d lines for one halt:\n%s", n, r.Output())
	}
	stop(t, r.Relay)
}

// A publication that is younger than rows of the log cannot be used for them, however often that is tried. The relay
// says so without flapping, and goes on behind them when somebody has decided to.
func TestPublicationYoungerThanRows(t *testing.T) {
	t.Parallel()
	for name, major := range map[string]int{"oldest": 14, "newest": 18} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := testenv.New(t, testenv.PostgresMajor(major))
			topic := env.CreateTopic("order", 1)
			succeeds(t, env, nil, "migrate", "up", "--config", env.WriteConfig(nil))
			env.Exec(`SELECT pg_create_logical_replication_slot('` + env.Slot + `', 'pgoutput')`)
			end := insert(t, env, "too early")
			env.Exec(`CREATE PUBLICATION ` + env.Publication + ` FOR TABLE public.outbox WITH (publish = 'insert')`)
			prepare(t, env) // takes the slot over
			r := env.StartRelay(testenv.RelayOptions{})
			notReady(t, r, patience, "stream: ", "the publication did not exist when they were written", "pg_replication_slot_advance")
			before := strings.Count(r.Output(), "\n")
			pass(t, 3*time.Second)
			notPast(t, env, end)
			if n := strings.Count(r.Output(), "\n") - before; n > 0 {
				t.Errorf("%d more lines:\n%s", n, r.Output())
			}
			if major == 18 && slot(t, env, "active") != "true" { // before, the server ends the stream
				t.Error("the slot is let go")
			}
			stop(t, r)
			env.Exec(`SELECT pg_replication_slot_advance('` + env.Slot + `', pg_current_wal_lsn())`)
			r = env.StartRelay(testenv.RelayOptions{})
			r.WaitReady(patience)
			insert(t, env, "second")
			wantKeys(t, env, topic, "second")
			stop(t, r)
		})
	}
}

// The record of the slot may vanish while the relay runs.
func TestSlotRowDeleted(t *testing.T) {
	t.Parallel()
	r := newRunning(t, nil)
	r.env.Exec(`DELETE FROM public.cdc_relay_slots`)
	conn := r.env.Conn()
	testenv.Until(t, patience, func(ctx context.Context) error {
		tag, err := conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, r.env.Slot)
		if err == nil && tag.RowsAffected() == 0 {
			err = errors.New("nobody streams")
		}
		return err
	})
	refused(t, testenv.Result{Code: r.Wait(patience), Stderr: r.Output()}, 78, "public.cdc_relay_slots has no row for it", "cdc-relay init")
	prepare(t, r.env)
	r.Relay = r.env.StartRelay(testenv.RelayOptions{})
	r.WaitReady(patience)
	insert(t, r.env, "second")
	wantKeys(t, r.env, r.topic, "first second")
	stop(t, r.Relay)
}
