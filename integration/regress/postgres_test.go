package regress_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A walsender that stops in the middle, its connection open, is given up. It holds the slot for as long as it exists;
// that is waited out.
func TestFrozenWalsender(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	r := s.Start(testenv.Settings{"postgres.wal_sender_timeout": "2s"})
	s.Settled(s.insert(1, 1, 0))
	sender := s.OfSlot("active_pid")
	pid, err := strconv.Atoi(sender)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // It may be gone.
	defer resume()
	within := s.insert(2, 2, 0)
	says(t, r, 503, "postgres")
	says(t, r, 200, "standby")
	says(t, r, 200, "held by process "+sender)
	s.Held(within)
	resume()
	s.Settled(within)
	says(t, r, 200, "leader")
	s.Settled(s.insert(3, 3, 0))
	s.once(topic, 3)
	s.Stop(r)
}

// Whatever ends the connections, and however the settings of the role would, all come back by themselves, and nothing is
// lost, reordered or repeated.
func TestServerEndsConnections(t *testing.T) {
	s := newStage(t)
	s.CreateTopic("order", 4)
	s.Exec(`DROP TABLE public.outbox`) // The relay makes the usual one.
	s.Exec(`ALTER DATABASE ` + s.Slot + ` SET idle_session_timeout = '300ms'`)
	s.Exec(`ALTER DATABASE ` + s.Slot + ` SET statement_timeout = '1s'`)
	c, err := checker.New(checker.Config{
		URL: s.URL, Slot: s.Slot, Brokers: s.Brokers, TopicPrefix: s.Prefix, Rollbacks: 0.1, Pause: 2 * time.Millisecond, Seed: 11,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := s.Start(nil)
	end := c.Begin(t.Context())

	const connections = 3 // the stream, the catalog's, the dead letters'
	const ours = `SELECT coalesce(string_agg(pid::text, ' ' ORDER BY pid), '') FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'cdc-relay'`
	before := s.Value(ours)
	every(time.Second, 3*time.Second, func() {
		if now := s.Value(ours); now != before || len(strings.Fields(now)) != connections {
			t.Errorf("the relay's backends %s became %s under the settings of the role", before, now)
		}
	})
	back := func() {
		t.Helper()
		testenv.Until(t, patience, func(context.Context) error {
			if now := s.Value(ours); len(strings.Fields(now)) != connections || now == before || s.OfSlot("active_pid") == "" {
				return errors.New("the relay does not have its connections")
			}
			return nil
		})
		r.WaitReady(patience)
		before = s.Value(ours)
	}
	for range 3 {
		s.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'cdc-relay'`)
		back()
	}
	server, err := testenv.Postgres(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	back()

	if err := end(); err != nil {
		t.Fatal(err)
	}
	judging, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	report, err := c.Wait(judging)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report.String())
	if !report.OK() || report.Duplicates > 0 {
		t.Errorf("lost, reordered or repeated: %s", report.String())
	}
	if _, body, err := r.Get(t.Context(), "/metrics"); err != nil || !strings.Contains(body, "cdc_relay_replication_reconnects_total") {
		t.Errorf("no metrics any more (%v)", err)
	}
	s.Stop(r)
}
