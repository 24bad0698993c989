package failover_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// through leads all clients to the primary through a proxy, and to what s.behind holds later.
func (s *site) through() *proxy.Proxy {
	s.t.Helper()
	s.behind.Store(s.primary)
	p, err := proxy.New(func() string { return s.behind.Load().Addr() })
	s.must(err)
	s.t.Cleanup(func() { _ = p.Close() })
	u, err := url.Parse(s.URL)
	s.must(err)
	u.Host = p.Addr()
	s.URL = u.String()
	return p
}

// steal has somebody else move the slot past five transactions, and takes their rows out of the table: nobody can publish
// them any more. It returns the positions before and after.
func (s *site) steal() (before, after string) {
	s.t.Helper()
	ctx, url := s.t.Context(), s.urlOf(s.primary)
	before = s.slotAt(url)
	sequence, err := testenv.TextAt(ctx, url, `SELECT max(seq) FROM public.outbox`)
	s.must(err)
	for range 5 {
		s.must(execAt(ctx, url, insertSQL, 5))
	}
	s.must(execAt(ctx, url, `SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, s.Slot))
	s.must(execAt(ctx, url, `DELETE FROM public.outbox WHERE seq > $1::text::bigint`, sequence))
	return before, s.slotAt(url)
}

// slotAt reads the confirmed position of the slot on one server.
func (s *site) slotAt(url string) string {
	s.t.Helper()
	lsn, err := testenv.TextAt(s.t.Context(), url, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1`, s.Slot)
	s.must(err)
	return lsn
}

// tellsOfMove waits until the relay says that the slot was moved, and fails the test if the range that it names does not
// hold what was stolen.
func (s *site) tellsOfMove(before, after string) {
	s.t.Helper()
	const text = "was moved by somebody else"
	s.relay.WaitOutput(text, patience)
	for line := range strings.Lines(s.relay.Output()) {
		if !strings.Contains(line, text) {
			continue
		}
		s.t.Log(strings.TrimSpace(line))
		if !strings.Contains(line, before) || !strings.Contains(line, after) {
			s.t.Errorf("the relay does not name the range from %s to %s", before, after)
		}
	}
}

// A slot that somebody else has advanced takes rows with it that can never be sent. The relay says which, whether it was
// away for a moment or had been stopped, and goes on from where the slot is: the server cannot go back.
func TestSlotAdvancedBySomebodyElse(t *testing.T) {
	t.Parallel()
	s := newSite(t, testenv.Major(), nil)
	p := s.through()
	s.start(nil)
	s.insert(5)
	s.judge()

	p.Cut()
	s.becomes(s.primary, "false", `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, s.Slot)
	before, after := s.steal()
	p.Heal()
	s.tellsOfMove(before, after)
	s.relay.WaitReady(patience)
	s.insert(5)
	s.judge().noPhantoms(t)

	s.stop()
	before, after = s.steal()
	s.start(nil)
	s.tellsOfMove(before, after)
	s.insert(5)
	s.judge().noPhantoms(t)
	s.stop()
}

// A slot that was left alone for too long is invalidated by the server; see idle_replication_slot_timeout. Nothing makes a
// new one in silence.
func TestIdleSlotInvalidated(t *testing.T) {
	t.Parallel()
	s := newSite(t, 18, map[string]string{"idle_replication_slot_timeout": "1s"})
	s.start(nil)
	s.insert(5)
	s.judge()
	s.stop()
	s.insert(5)
	at := s.slot("confirmed_flush_lsn")
	testenv.Pass(t, 2*time.Second)
	s.Exec(`CHECKPOINT`)
	s.becomes(s.primary, "idle_timeout", `SELECT invalidation_reason FROM pg_replication_slots WHERE slot_name = $1`, s.Slot)
	s.exits(78, "idle_timeout", "events committed after "+at+" may be missing from the topics", "pg_drop_replication_slot('"+s.Slot+"')")
}

// exits runs the relay, which has to give up with the code and every text.
func (s *site) exits(code int, want ...string) {
	s.t.Helper()
	s.launch(nil)
	if got := s.relay.Wait(patience); got != code {
		s.t.Errorf("the relay exits with %d, want %d", got, code)
	}
	for _, w := range want {
		if !strings.Contains(s.relay.Output(), w) {
			s.t.Errorf("the relay does not say %q:\n%s", w, s.relay.Output())
		}
	}
}

// The database is moved to another cluster, as by a dump, with the relay's tables. Positions mean nothing there: a relay
// that runs halts, one that starts gives up, both with the command that lets it go on.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	s := newSite(t, testenv.Major(), nil)
	p := s.through()
	s.start(nil)
	s.insert(5)
	s.judge()
	const state = `SELECT system_id || ' ' || history_id FROM public.cdc_relay_slots`
	system, history, _ := strings.Cut(s.Text(state), " ")

	p.Cut()
	other, err := localstack.StartPostgres(t.Context(), localstack.PostgresConfig{Major: testenv.Major(), NoSync: true})
	s.must(err)
	closeAtEnd(t, other)
	s.must(execAt(t.Context(), other.URL("postgres"), `CREATE DATABASE `+s.Slot))
	s.primary = other
	s.behind.Store(other)
	moved := s.WriteConfig(testenv.Settings{"postgres.url": s.urlOf(other)})
	if res := s.Run("init", "--config", moved); res.Code != 0 {
		t.Fatal(res.Stderr)
	}
	s.must(execAt(t.Context(), s.urlOf(other), `UPDATE public.cdc_relay_slots SET system_id = $1, history_id = $2`, system, history))
	p.Heal()
	s.insert(5)
	s.says(patience, "another server than the one that slot", system, "cdc-relay init --accept-server")
	s.stop()
	s.exits(78, "another server than the one that slot", "cdc-relay init --accept-server")
	s.init("--accept-server")
	s.start(nil)
	if v := s.judge(); len(v.phantoms) != 25 {
		t.Errorf("%d records of rows that the server does not have, want the 25 of the other one", len(v.phantoms))
	}
	s.stop()
	if got := s.Text(state); strings.Contains(got, system) || strings.Contains(got, history) {
		t.Errorf("the slot's row still names the other server or its history: %s", got)
	}
}
