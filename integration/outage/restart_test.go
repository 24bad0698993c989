package outage_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// sharedServer is the server that the package's tests share.
func sharedServer(t *testing.T) *localstack.Postgres {
	t.Helper()
	server, err := testenv.Postgres(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// A server that restarts, in order or as after a crash, costs no row and no order; nor a repeat, although after a crash the
// slot stands where it was at the last checkpoint.
func TestPostgresRestarts(t *testing.T) {
	server := sharedServer(t)
	l := newLoad(t, nil, checker.Config{Keys: 100, Rollbacks: 0.1, Writers: 3, Pause: time.Millisecond, Seed: 6})
	wentBack := false
	l.streams()
	for _, mode := range []localstack.StopMode{localstack.Fast, localstack.Immediate, localstack.Immediate, localstack.Fast} {
		before := l.env.OfSlot("confirmed_flush_lsn")
		if err := server.Stop(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.streams()
		wentBack = wentBack || l.from() < parseLSN(t, before)
	}
	if !wentBack {
		t.Error("the slot never went back: the crashes show nothing")
	}
	if report := l.judge(); report.Duplicates > 0 {
		t.Errorf("%d repeats, want none within one process", report.Duplicates)
	}
	l.relay.Stop(patience)
}

// from is where the relay's last session began.
func (l *load) from() pglogrepl.LSN {
	l.t.Helper()
	var last string
	for line := range strings.Lines(l.relay.Output()) {
		var entry struct{ Msg, From string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "streaming" {
			last = entry.From
		}
	}
	return parseLSN(l.t, last)
}

func parseLSN(t *testing.T, text string) pglogrepl.LSN {
	t.Helper()
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

// streams waits until rows are confirmed.
func (l *load) streams() {
	l.t.Helper()
	before, conn := l.env.OfSlot("confirmed_flush_lsn"), l.env.Conn()
	testenv.Until(l.t, patience, func(ctx context.Context) error {
		var moved bool
		err := conn.QueryRow(ctx, `SELECT confirmed_flush_lsn > $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`,
			before, l.env.Slot).Scan(&moved)
		if err == nil && !moved {
			err = errors.New("nothing is confirmed")
		}
		return err
	})
	l.relay.WaitReady(patience)
}

// A server that is to stop waits until its walsenders have had everything confirmed, which cannot be while the broker
// stands still. The relay sees what goes on and leaves; that its ordinary connection alone is ended is no sign of it.
func TestFastShutdownWhileBrokerIsFrozen(t *testing.T) {
	server := sharedServer(t)
	l := newLoad(t, nil, checker.Config{Pause: time.Millisecond, Seed: 7}, testenv.RealKafka())
	b := broker(t)
	l.streams()
	if err := b.Pause(); err != nil {
		t.Fatal(err)
	}
	l.relay.WaitStatus("/readyz", 503, 10*time.Second)
	walsender := l.env.OfSlot("active_pid")
	for range 2 {
		l.endOrdinary()
	}
	if now := l.env.OfSlot("active_pid"); now != walsender {
		t.Errorf("walsender %s became %s when the ordinary connection was ended", walsender, now)
	}
	began := time.Now()
	limit, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := server.Stop(limit, localstack.Fast); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	t.Logf("the server stopped after %v", took.Round(10*time.Millisecond))
	if took > 3*time.Second {
		t.Errorf("the server took %v to stop, want at most 3s", took)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Resume(); err != nil {
		t.Fatal(err)
	}
	l.relay.WaitReady(patience)
	l.judge()
	l.relay.Stop(patience)
}

// endOrdinary ends the relay's ordinary connection and waits until there is another.
func (l *load) endOrdinary() {
	l.t.Helper()
	const mine = ` FROM pg_stat_activity WHERE application_name = 'cdc-relay' AND backend_type = 'client backend'
		AND datname = current_database()`
	conn := l.env.Conn()
	var before int
	testenv.Until(l.t, patience, func(ctx context.Context) error {
		return conn.QueryRow(ctx, `SELECT pid`+mine).Scan(&before)
	})
	if _, err := conn.Exec(l.t.Context(), `SELECT pg_terminate_backend($1)`, before); err != nil {
		l.t.Fatal(err)
	}
	testenv.Until(l.t, patience, func(ctx context.Context) error {
		var now int
		err := conn.QueryRow(ctx, `SELECT pid`+mine).Scan(&now)
		if err == nil && now == before {
			err = errors.New("the connection is still there")
		}
		return err
	})
}
