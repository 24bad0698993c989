package failover_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A server may come up with another past than the one that the topics were written from. The relay can live through that,
// or be started anew; and it may connect at once, or when the server has already written beyond where it was.
type witness struct {
	name  string
	alive bool // the relay's process lives through the change
	late  bool // it connects when there are many new rows
}

var witnesses = []witness{
	{"restarted", false, false},
	{"restarted late", false, true},
	{"alive", true, false},
	{"alive and late", true, true},
}

func eachWitness(t *testing.T, test func(t *testing.T, w witness)) {
	t.Parallel()
	for _, w := range witnesses {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(t, w)
		})
	}
}

// change has the relay go through a change of the server, and 60 transactions be written after it.
func (s *site) change(w witness, change func()) {
	s.t.Helper()
	switch {
	case !w.alive:
		s.relay.Kill()
	case w.late:
		s.relay.Signal(syscall.SIGSTOP)
	}
	change()
	insert := func() { s.insert(60) }
	if w.late {
		insert()
	}
	switch {
	case !w.alive:
		s.launch(nil)
	case w.late:
		s.relay.Signal(syscall.SIGCONT)
	}
	if !w.late {
		s.relay.WaitReady(patience)
		insert()
	}
}

// alarmed fails the test unless the relay has said, once, that topic and slot are not of one history.
func (s *site) alarmed() {
	s.t.Helper()
	s.relay.WaitOutput("not of one history", patience)
	if n := scene.Metric(s.t, s.relay, "cdc_relay_history_renewed_total"); n != 1 {
		s.t.Errorf("the history was renewed %v times, want once", n)
	}
}

// reused fails the test unless rows that the server does not have share positions with rows that it has: else the test
// shows nothing.
func (v verdict) reused(t *testing.T, transactions int) {
	t.Helper()
	gone := map[string]bool{}
	var highest uint64
	for _, c := range v.phantoms {
		gone[c.id] = true
		highest = max(highest, c.commit)
	}
	if len(v.phantoms) != transactions*5 {
		t.Errorf("%d records of rows that the server does not have, want the %d of the time that is gone", len(v.phantoms), transactions*5)
	}
	below := 0
	for _, c := range v.copies[len(v.copies)-len(v.copies)/3:] {
		if !gone[c.id] && c.commit <= highest {
			below++
		}
	}
	t.Logf("%d of the last records lie below %X, the highest position that is gone", below, highest)
	if below == 0 {
		t.Error("no position was used twice")
	}
}

// The standby takes over without the last rows that the old primary had, and that are on the topic; it uses their positions
// again for other rows. Each of those is published; what the standby never had stays on the topic, and nothing else is
// wrong.
func TestDivergedTimeline(t *testing.T) {
	eachWitness(t, func(t *testing.T, w witness) {
		s := newSite(t, 18, nil)
		standby := s.addStandby("standby", nil)
		s.start(nil)
		s.synced(standby)
		s.becomes(standby, s.Text(`SELECT count(*) FROM public.outbox`), `SELECT count(*) FROM public.outbox`)
		s.must(standby.Stop(t.Context(), localstack.Fast))
		s.insert(40)
		s.judge().noPhantoms(t)
		var confirmed string
		s.change(w, func() {
			s.must(s.primary.Kill())
			s.must(standby.Start(t.Context()))
			confirmed = s.promote(standby)
		})
		v := s.judge()
		v.reused(t, 40)
		v.repeatsOnlyFrom(t, confirmed)
		s.relay.WaitOutput(`"timeline":2`, patience)
		s.stop()
	})
}

// The data directory is restored from a snapshot of the disk: same system identifier, same timeline, and the positions of
// what was written since are used again. The relay raises the alarm, begins a new history and publishes every new row.
func TestRestoredSnapshot(t *testing.T) {
	eachWitness(t, func(t *testing.T, w witness) {
		s := newSite(t, 18, nil)
		s.start(nil)
		s.insert(5)
		s.judge()
		snapshot, err := s.primary.Snapshot()
		s.must(err)
		s.insert(40)
		s.judge().noPhantoms(t)
		s.change(w, func() {
			s.must(s.primary.Stop(t.Context(), localstack.Immediate))
			s.must(s.primary.Restore(snapshot))
			s.must(s.primary.Start(t.Context()))
		})
		s.judge().reused(t, 40)
		s.alarmed()
		s.stop()
	})
}

// Two standbys of one primary are promoted one after the other. Both are on timeline 2, and neither knows of the other.
func TestTwinPromotion(t *testing.T) {
	eachWitness(t, func(t *testing.T, w witness) {
		s := newSite(t, 18, nil)
		first, second := s.addStandby("first", nil), s.addStandby("second", nil)
		s.start(nil)
		s.synced(first)
		s.synced(second)
		s.alter(second, "sync_replication_slots", "off") // so that its copy of the slot is old
		s.insert(5)
		rows := s.Text(`SELECT count(*) FROM public.outbox`)
		for _, standby := range []*localstack.Postgres{first, second} {
			s.becomes(standby, rows, `SELECT count(*) FROM public.outbox`)
		}
		s.must(s.primary.Kill())
		s.promote(first)
		s.relay.WaitOutput(`"timeline":2`, patience)
		s.insert(40)
		s.judge().noPhantoms(t)
		s.change(w, func() {
			s.must(first.Kill())
			s.promote(second)
		})
		s.judge().reused(t, 40)
		s.alarmed()
		s.stop()
	})
}

// After a failover the old primary is back alone. The topic has records of a later timeline, so the relay halts with the
// slot in hand, until the operator accepts this server; then it goes on from there. It notices when it has rows to send,
// whether they were there before it came or not.
func TestOldPrimaryComesBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		witness
		idle bool // all that the old primary had was confirmed
	}{
		{"restarted", witness{}, false},
		{"alive", witness{alive: true}, false},
		{"restarted, idle", witness{}, true},
		{"alive, idle", witness{alive: true}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 18, nil)
			old := s.primary
			standby := s.addStandby("standby", nil)
			s.start(nil)
			s.synced(standby)
			s.judge()
			if tt.idle {
				s.must(old.Stop(t.Context(), localstack.Fast)) // The slot's position is saved.
			} else {
				s.must(old.Kill())
			}
			s.promote(standby)
			s.relay.WaitOutput(`"timeline":2`, patience)
			s.insert(20)
			s.judge().noPhantoms(t)
			s.bringBack(old, standby, tt.alive, tt.idle)
			body := s.says(patience, "timeline 2", "cdc-relay init --accept-server")
			t.Log(strings.TrimSpace(body))
			s.halted(true)
			if v := s.accept(tt.alive && tt.idle); len(v.phantoms) != 100 {
				t.Errorf("%d records of rows that the server does not have, want the 100 of the other one", len(v.phantoms))
			}
			s.stop()
		})
	}
}

// bringBack starts the old primary in the place of the standby, and writes rows there, before the relay comes or after.
func (s *site) bringBack(old, standby *localstack.Postgres, alive, idle bool) {
	s.t.Helper()
	if alive {
		s.relay.Signal(syscall.SIGSTOP)
	} else {
		s.relay.Kill()
	}
	s.must(standby.Kill())
	s.must(old.Start(s.t.Context()))
	s.primary = old
	if !idle {
		s.insert(20)
	}
	const streaming = `"msg":"streaming"`
	before := strings.Count(s.relay.Output(), streaming)
	if alive {
		s.relay.Signal(syscall.SIGCONT)
	} else {
		s.launch(nil)
		before = 0
	}
	if idle {
		testenv.Until(s.t, patience, func(context.Context) error {
			if strings.Count(s.relay.Output(), streaming) == before {
				return errors.New("the relay does not stream")
			}
			return nil
		})
		s.insert(20)
	}
}

// halted fails the test when the relay confirms anything or, where the server lets it keep the slot, lets go of that.
func (s *site) halted(keeps bool) {
	s.t.Helper()
	before := s.slot("confirmed_flush_lsn")
	testenv.Pass(s.t, 4*time.Second) // longer than wal_sender_timeout
	if after := s.slot("confirmed_flush_lsn"); after != before {
		s.t.Errorf("confirmed position moved from %s to %s while halted", before, after)
	}
	if keeps && s.slot("active") != "true" {
		s.t.Error("the slot is let go")
	}
}

// accept has the relay go on with this server, by itself at its next look, which it takes every 30 seconds, or by a new
// start.
func (s *site) accept(byItself bool) verdict {
	s.t.Helper()
	if !byItself {
		s.stop()
	}
	s.t.Log(strings.TrimSpace(s.init("--accept-server")))
	if !byItself {
		s.launch(nil)
	}
	s.relay.WaitReady(patience)
	return s.judge()
}
