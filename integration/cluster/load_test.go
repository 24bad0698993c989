package cluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// load is a relay between a checker that writes and the same checker that judges.
type load struct {
	t         *testing.T
	env       *testenv.Env
	conn      *pgx.Conn
	check     *checker.Checker
	relay     *testenv.Relay
	walsender string // its process id
	end       func() error
}

// newLoad starts a relay, begins to write and waits for the first records. The topics of cfg.Types are the test's to
// create: before is told the names when there is a database and nothing runs yet.
func newLoad(t *testing.T, settings testenv.Settings, cfg checker.Config, before func(env *testenv.Env)) *load {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = brokers(t).addrs()
	if res := env.Run("init", "--config", env.WriteConfig(nil)); res.Code != 0 {
		t.Fatal(res.Stderr)
	}
	before(env)
	cfg.URL, cfg.Slot, cfg.Brokers, cfg.TopicPrefix = env.URL, env.Slot, env.Brokers, env.Prefix
	cfg.Keys, cfg.Rollbacks, cfg.Padding = 100, 0.05, 200
	if cfg.Pause == 0 {
		cfg.Pause = 10 * time.Millisecond
	}
	c, err := checker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, env: env, conn: env.Conn(), check: c}
	l.relay = env.StartRelay(testenv.RelayOptions{Settings: settings})
	l.relay.WaitReady(patience)
	l.walsender = l.env.OfSlot("active_pid")
	l.end = c.Begin(t.Context())
	testenv.Until(t, patience, func(context.Context) error {
		if n := scene.Metric(t, l.relay, "cdc_relay_messages_published_total"); n < 100 {
			return fmt.Errorf("%v records so far", n)
		}
		return nil
	})
	return l
}

// one creates the topic order with six partitions, each on all brokers.
func one(env *testenv.Env) { env.CreateTopic("order", 6, safe...) }

// flows waits until everything that is committed by now is confirmed, and says how long that took.
func (l *load) flows(after string, limit time.Duration) {
	l.t.Helper()
	began := time.Now()
	now := l.env.Text(`SELECT pg_current_wal_insert_lsn()`)
	testenv.Until(l.t, limit, func(ctx context.Context) error {
		var passed bool
		err := l.conn.QueryRow(ctx, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots
			WHERE slot_name = $2`, now, l.env.Slot).Scan(&passed)
		if err == nil && !passed {
			_, reason, _ := l.relay.Get(ctx, "/readyz")
			err = fmt.Errorf("after %s: %s is not confirmed: %s", after, now, reason)
		}
		return err
	})
	l.t.Logf("after %s: all is confirmed within %v", after, time.Since(began).Round(10*time.Millisecond))
}

// stands waits until nothing has been confirmed for so long, and says so. The relay must live and have a reason.
func (l *load) stands(d time.Duration) (reason string) {
	l.t.Helper()
	at, since := "", time.Now()
	testenv.Until(l.t, d+patience, func(ctx context.Context) error {
		now := l.env.OfSlot("confirmed_flush_lsn")
		if now != at {
			at, since = now, time.Now()
		}
		if time.Since(since) < d {
			return fmt.Errorf("confirmed up to %s", now)
		}
		var status int
		var err error
		status, reason, err = l.relay.Get(ctx, "/readyz")
		if err == nil && status != 503 {
			err = fmt.Errorf("/readyz answers %d while nothing gets on: %s", status, reason)
		}
		return err
	})
	return reason
}

// judge ends writing and relay. Nothing may be lost, out of order, confirmed early or repeated, and the relay must
// have kept its replication connection.
func (l *load) judge() checker.Report {
	l.t.Helper()
	if err := l.end(); err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	report, err := l.check.Wait(ctx)
	if err != nil {
		l.t.Fatalf("%v: %s", err, report.String())
	}
	l.t.Log(report.String())
	if !report.OK() {
		l.t.Errorf("lost, reordered or confirmed early: %s", report.String())
	}
	if report.Duplicates > 0 {
		l.t.Errorf("%d repeats, want none", report.Duplicates)
	}
	if now := l.env.OfSlot("active_pid"); now != l.walsender {
		l.t.Errorf("Kafka's trouble has cost the replication connection: walsender %s became %s", l.walsender, now)
	}
	l.relay.WaitReady(soon)
	if code := l.relay.Stop(patience); code != 0 {
		l.t.Errorf("exit code %d, want 0", code)
	}
	return report
}
