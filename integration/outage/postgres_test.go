package outage_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// An ended replication connection comes back by itself, and within one process nothing is repeated. The ordinary
// connection comes back too, and its loss alone does not touch the stream.
func TestTerminatedConnections(t *testing.T) {
	l := newLoad(t, nil, checker.Config{Rollbacks: 0.1, Seed: 1})
	conn := l.env.Conn()
	for range 10 {
		before := l.env.OfSlot("active_pid")
		if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend($1::int)`, before); err != nil {
			t.Fatal(err)
		}
		testenv.Until(t, patience, func(context.Context) error {
			if now := l.env.OfSlot("active_pid"); now == "" || now == before {
				return errors.New("the slot is not streamed again")
			}
			return nil
		})
	}
	l.relay.WaitReady(patience)
	walsender := l.env.OfSlot("active_pid")
	if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = 'cdc-relay' AND backend_type = 'client backend' AND datname = current_database()`); err != nil {
		t.Fatal(err)
	}
	l.relay.WaitReady(patience)
	if now := l.env.OfSlot("active_pid"); now != walsender {
		t.Errorf("walsender %s became %s when the ordinary connection ended", walsender, now)
	}
	if report := l.judge(); report.Duplicates > 0 {
		t.Errorf("%d repeats, want none within one process", report.Duplicates)
	}
	l.relay.Stop(patience)
}

// A server that no longer answers is noticed, and found again when it does.
func TestBlackHoledPostgres(t *testing.T) {
	p, err := proxy.New(sharedServer(t).Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	env := testenv.New(t)
	env.CreateTopic("order", 1)
	u, err := url.Parse(env.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.Addr()
	r := env.StartRelay(testenv.RelayOptions{Settings: testenv.Settings{"postgres.url": u.String()}, Args: []string{"--init"}})
	r.WaitReady(patience)
	p.Stall(proxy.Both)
	stalled := time.Now()
	reason := r.WaitStatus("/readyz", 503, 10*time.Second)
	t.Log(reason)
	if status, _, err := r.Get(t.Context(), "/livez"); status != 200 {
		t.Errorf("/livez answers %d (%v) while Postgres is away", status, err)
	}
	r.WaitOutput("not streaming", patience)
	left := time.Since(stalled)
	t.Logf("the connection was given up after %v", left.Round(10*time.Millisecond))
	if left > 15*time.Second {
		t.Errorf("the connection was given up after %v, want at most 15s", left)
	}
	p.Heal()
	r.WaitReady(5 * time.Second)
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'k', 'T', '{}')`)
	env.Consume(env.Topic("order"), 1, patience)
	r.Stop(patience)
}

// Stopping while Postgres is down is quick and clean.
func TestStopWhilePostgresIsDown(t *testing.T) {
	server := sharedServer(t)
	env := testenv.New(t)
	env.CreateTopic("order", 1)
	r := env.StartRelay(testenv.RelayOptions{Args: []string{"--init"}})
	r.WaitReady(patience)
	if err := server.Stop(t.Context(), localstack.Fast); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Start(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	r.WaitStatus("/readyz", 503, 10*time.Second)
	if code := r.Stop(5 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

var noiseSegments = flag.Int("noise.segments", 5, "WAL segments of 16 MB that others write each time in TestIdleOutboxHoldsNoWAL; 64 is a gigabyte")

// An outbox without traffic holds no WAL while the database, or another one of the cluster, writes a lot, committed or
// not.
func TestIdleOutboxHoldsNoWAL(t *testing.T) {
	env := testenv.New(t)
	env.CreateTopic("order", 1)
	r := env.StartRelay(testenv.RelayOptions{Args: []string{"--init"}})
	r.WaitReady(patience)
	neighbour := testenv.New(t, testenv.NoKafka())
	const noise = `INSERT INTO noise (filler) SELECT repeat('x', 1000) FROM generate_series(1, 10000)`
	env.Exec(`CREATE TABLE noise (id bigserial PRIMARY KEY, filler text)`)
	neighbour.Exec(`CREATE TABLE noise (id bigserial PRIMARY KEY, filler text)`)
	for name, write := range map[string]func(){
		"same database":   func() { env.Exec(noise) },
		"neighbour":       func() { neighbour.Exec(noise) },
		"all rolled back": func() { env.Exec(`BEGIN; ` + noise + `; ROLLBACK`) },
	} {
		for range *noiseSegments {
			write()
			env.Exec(`SELECT pg_switch_wal()`)
		}
		conn := env.Conn()
		testenv.Until(t, patience, func(ctx context.Context) error {
			// A slot lets go of WAL behind a record of running transactions, as a checkpoint writes one.
			if _, err := conn.Exec(ctx, `CHECKPOINT`); err != nil {
				return err
			}
			var unconfirmed, kept int64
			err := conn.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - confirmed_flush_lsn)::int8, (pg_current_wal_lsn() - restart_lsn)::int8
				FROM pg_replication_slots WHERE slot_name = $1`, env.Slot).Scan(&unconfirmed, &kept)
			if err == nil && (unconfirmed > 1<<20 || kept > 1<<20) {
				err = fmt.Errorf("%s busy: %d bytes are not confirmed, %d are kept", name, unconfirmed, kept)
			}
			return err
		})
	}
	if code := r.Stop(patience); code != 0 || strings.Contains(r.Output(), `"level":"ERROR"`) {
		t.Errorf("exit code %d", code)
	}
}
