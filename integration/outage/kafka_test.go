package outage_test

import (
	"context"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// broker is the one broker of the shared cluster.
func broker(t *testing.T) *localstack.Broker {
	t.Helper()
	return testenv.Kafka().Brokers()[0]
}

// A broker that is gone for a while costs nothing but time: the position stays, and nothing is lost, reordered or
// repeated.
func TestBrokerGoneAndBack(t *testing.T) {
	l := newLoad(t, nil, checker.Config{Rollbacks: 0.1, Pause: time.Millisecond, Seed: 2}, testenv.RealKafka())
	b := broker(t)
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	l.relay.WaitStatus("/readyz", 503, 10*time.Second)
	before, walsender := l.env.OfSlot("confirmed_flush_lsn"), l.env.OfSlot("active_pid")
	l.env.Exec(`SELECT pg_switch_wal()`)
	if after := l.env.OfSlot("confirmed_flush_lsn"); after != before {
		t.Errorf("confirmed position moved from %s to %s without a broker", before, after)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.relay.WaitReady(patience)
	if now := l.env.OfSlot("active_pid"); now != walsender {
		t.Errorf("the outage cost the replication connection: %s became %s", walsender, now)
	}
	if report := l.judge(); report.Duplicates > 0 {
		t.Errorf("%d repeats, want none", report.Duplicates)
	}
	l.relay.Stop(patience)
}

var freeze = flag.Duration("broker.freeze", 8*time.Second, "how long the broker of TestFrozenBroker is frozen; 2m is the full length, with the default wal_sender_timeout")

// While the broker is frozen the relay says so, lives, keeps its walsender and confirms nothing; afterwards it goes on
// by itself within seconds.
func TestFrozenBroker(t *testing.T) {
	settings := testenv.Settings{"postgres.wal_sender_timeout": "2s"}
	if *freeze > 30*time.Second {
		settings = nil
	}
	l := newLoad(t, settings,
		checker.Config{Pause: time.Millisecond, Padding: 2000, Seed: 3}, testenv.RealKafka())
	b := broker(t)
	l.streams()
	walsender := l.env.OfSlot("active_pid")
	if err := b.Pause(); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	reason := l.relay.WaitStatus("/readyz", 503, 10*time.Second)
	t.Logf("not ready after %v: %s", time.Since(frozen).Round(time.Second), reason)
	if !strings.Contains(reason, "kafka") && !strings.Contains(reason, "broker") {
		t.Errorf("the reason does not name Kafka: %s", reason)
	}
	before := l.env.OfSlot("confirmed_flush_lsn")
	deadline := frozen.Add(*freeze) // several times wal_sender_timeout
	testenv.Until(t, *freeze+10*time.Second, func(context.Context) error {
		if time.Now().Before(deadline) {
			return errors.New("the time is not over")
		}
		return nil
	})
	if after := l.env.OfSlot("confirmed_flush_lsn"); after != before {
		t.Errorf("confirmed position moved from %s to %s while nothing could be acknowledged", before, after)
	}
	if now := l.env.OfSlot("active_pid"); now != walsender {
		t.Errorf("walsender %s became %s", walsender, now)
	}
	if status, _, err := l.relay.Get(t.Context(), "/livez"); status != 200 {
		t.Errorf("/livez answers %d (%v)", status, err)
	}
	if err := b.Resume(); err != nil {
		t.Fatal(err)
	}
	l.relay.WaitReady(5 * time.Second)
	l.judge()
	l.relay.Stop(patience)
}

// A stop while the broker is frozen ends in time, exits with 0 and says what will be sent again.
func TestStopWhileBrokerIsFrozen(t *testing.T) {
	settings := testenv.Settings{"shutdown_timeout": "2s"}
	l := newLoad(t, settings, checker.Config{Pause: 5 * time.Millisecond, Seed: 4}, testenv.RealKafka())
	b := broker(t)
	if err := b.Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Resume() }()
	l.relay.WaitStatus("/readyz", 503, 10*time.Second)
	stopped := time.Now()
	if code := l.relay.Stop(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(stopped); took > 6*time.Second {
		t.Errorf("the stop took %v with a shutdown_timeout of 2s", took)
	}
	if !strings.Contains(l.relay.Output(), "will be sent again") {
		t.Error("nothing says that rows will be sent again")
	}
	if l.env.OfSlot("active_pid") != "" {
		t.Error("the slot is still held after the stop")
	}
	if err := b.Resume(); err != nil {
		t.Fatal(err)
	}
	l.relay = l.start(settings)
	l.judge()
	l.relay.Stop(patience)
}
