package failover_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// insertPoison writes rows for a topic that cannot be, of the same keys as the others, and returns their ids.
func (s *site) insertPoison(rows int) (ids []string) {
	s.t.Helper()
	ctx := s.t.Context()
	conn, err := pgx.Connect(ctx, s.URL)
	s.must(err)
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, `SET synchronous_commit = on`)
	s.must(err)
	for i := range rows {
		var id string
		s.must(conn.QueryRow(ctx, `INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
			VALUES ('order?', 'key-' || $1::int % 11, 'T', '{}') RETURNING id::text`, i).Scan(&id))
		ids = append(ids, id)
	}
	return ids
}

// deadLetters returns the message ids of the dead letters that a server has.
func deadLetters(ctx context.Context, url string) ([]string, error) {
	ids, err := testenv.TextAt(ctx, url, `SELECT coalesce(string_agg(convert_from(message_id, 'UTF8'), ' ' ORDER BY id), '')
		FROM public.cdc_relay_dead_letter WHERE state = 'dead'`)
	return strings.Fields(ids), err
}

// areDead waits until the server that takes rows has exactly these dead letters, each once.
func (s *site) areDead(want ...string) {
	s.t.Helper()
	want = slices.Sorted(slices.Values(want))
	testenv.Until(s.t, patience, func(ctx context.Context) error {
		got, err := deadLetters(ctx, s.URL)
		if slices.Sort(got); err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("the dead letters are %v, want %v", got, want)
		}
		return err
	})
}

// launchUntil runs a relay that stops itself at a point of package internal/crash, and waits until it streams.
func (s *site) launchUntil(point string, settings testenv.Settings) {
	s.t.Helper()
	s.relay = s.StartRelay(testenv.RelayOptions{Settings: settings, CrashAt: point + ":1:stop"})
	s.relay.WaitReady(patience)
}

// stopped waits until the relay is stopped by a signal: state T in /proc/PID/stat, after the name in brackets.
func (s *site) stopped() {
	s.t.Helper()
	testenv.Until(s.t, patience, func(context.Context) error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.relay.PID()))
		if _, state, found := bytes.Cut(stat, []byte(") ")); err == nil && (!found || state[0] != 'T') {
			err = errors.New("the relay is not stopped")
		}
		return err
	})
}

// The primary is gone for good right after a row has become a dead letter, of which the standby has not heard. So the row's
// position had not been confirmed, and the relay puts it aside once more where it is led to.
func TestFailoverRightAfterADeadLetter(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		s := newSite(t, major, nil)
		standby := s.guarded()
		s.launchUntil("dead_letter", testenv.Settings{"postgres.wal_sender_timeout": "60s"})
		s.synced(standby)
		ids := s.insertPoison(1)
		s.stopped()
		s.must(standby.Stop(t.Context(), localstack.Fast))
		s.relay.Signal(syscall.SIGCONT)
		s.areDead(ids...)
		s.insert(5)
		testenv.Pass(t, time.Second)
		if s.Text(`SELECT confirmed_flush_lsn <= min(commit_lsn) FROM pg_replication_slots, public.cdc_relay_dead_letter
			WHERE slot_name = $1 GROUP BY confirmed_flush_lsn`, s.Slot) != "true" {
			t.Errorf("confirmed up to %s, beyond a row whose dead letter the standby does not have", s.slot("confirmed_flush_lsn"))
		}
		s.must(s.primary.Kill())
		s.must(standby.Start(t.Context()))
		if got, err := deadLetters(t.Context(), s.urlOf(standby)); err != nil || len(got) > 0 {
			t.Errorf("the standby has the dead letters %v (%v), want none", got, err)
		}
		s.promote(standby)
		s.areDead(ids...)
		s.insert(5)
		s.judge().noPhantoms(t)
		s.areDead(ids...)
		s.stop()
	})
}

// The same under load, when the standby may have heard of the last dead letters or not.
func TestFailoverAmongDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t, 17, nil)
	standby := s.guarded()
	s.start(testenv.Settings{"breaker.share": 1}) // The load is slower than the rows that are not taken.
	s.synced(standby)
	end := s.load()
	ids := s.insertPoison(50)
	s.must(s.primary.Kill())
	s.promote(standby)
	s.relay.WaitReady(patience)
	ids = append(s.survivors(ids), s.insertPoison(10)...)
	end()
	s.judge().noPhantoms(t)
	s.areDead(ids...)
	t.Logf("%d rows are dead letters", len(ids))
	s.stop()
}

// survivors returns those rows that the server has.
func (s *site) survivors(ids []string) []string {
	s.t.Helper()
	return strings.Fields(s.Text(`SELECT coalesce(string_agg(id::text, ' '), '') FROM public.outbox WHERE id::text = ANY($1)`, ids))
}

// A dead letter outlives a crash of the server right after its commit, even where the role of the relay does not wait for
// commits to reach the disk.
func TestCrashRightAfterADeadLetter(t *testing.T) {
	t.Parallel()
	crashes := map[string]func(*site) error{
		"immediate": func(s *site) error { return s.primary.Stop(s.t.Context(), localstack.Immediate) },
		"killed":    func(s *site) error { return s.primary.Kill() },
	}
	for _, name := range slices.Sorted(maps.Keys(crashes)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, testenv.Major(), map[string]string{"wal_writer_delay": "10s"})
			s.Exec(`ALTER ROLE postgres SET synchronous_commit = off`)
			s.launchUntil("dead_lettered", nil)
			ids := s.insertPoison(1)
			s.stopped()
			s.must(crashes[name](s))
			s.must(s.primary.Start(t.Context()))
			if got, err := deadLetters(t.Context(), s.URL); err != nil || !slices.Equal(got, ids) {
				t.Errorf("after the crash the dead letters are %v (%v), want %v", got, err, ids)
			}
			s.relay.Signal(syscall.SIGCONT)
			s.relay.WaitReady(patience)
			s.Exec(`ALTER ROLE postgres RESET synchronous_commit`)
			ids = append(ids, s.insertPoison(1)...)
			s.insert(5)
			s.judge().noPhantoms(t)
			s.areDead(ids...)
			s.stop()
		})
	}
}

// Where every commit waits for a standby, the relay itself is one, and the only one there is. It must not wait for itself:
// neither when it starts, nor for a dead letter, nor when the position is noted; and a replay comes to an end, too.
func TestRelayIsTheSynchronousStandby(t *testing.T) {
	t.Parallel()
	s := newSite(t, testenv.Major(), nil)
	s.start(nil)
	s.alter(s.primary, "synchronous_standby_names", "*")
	s.insert(5)
	ids := s.insertPoison(3)
	s.insert(5)
	s.areDead(ids...)
	s.judge().noPhantoms(t)
	s.stop()
	s.start(nil)
	ids = append(ids, s.insertPoison(1)...)
	s.areDead(ids...)
	res := s.Run("dlq", "replay", "--config", s.WriteConfig(nil), "--all", "--to-topic", s.topic, "--wait", "--timeout", "30s")
	if res.Code != 0 {
		t.Errorf("dlq replay exits with %d: %s", res.Code, res.Stderr)
	}
	s.areDead()
	s.insert(5)
	if v := s.judge(); len(v.phantoms) != len(ids) {
		t.Errorf("%d records are not of ordinary rows, want those of the %d replays", len(v.phantoms), len(ids))
	}
	s.stop()
}
