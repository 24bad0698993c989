package matrix_test

import (
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/crash"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// Of two relays one works and the other waits. When the first is stopped it loses the slot to the second, and what it
// does when it wakes can neither lose nor reorder anything.
func twoInstances(t *testing.T, st *stage) {
	t.Run("stopped_after_its_write", func(t *testing.T) { stoppedAfterWrite(t, st) })
	t.Run("zombie_writes", func(t *testing.T) { zombieWrites(t, st) })
}

const senderTimeout = "2s"

// pair starts a leader, with these options, and a standby.
func (p *play) pair(leads testenv.RelayOptions) (leader, standby *testenv.Relay) {
	p.t.Helper()
	standsBy := testenv.Settings{"postgres.wal_sender_timeout": senderTimeout}
	settings := maps.Clone(standsBy)
	maps.Copy(settings, leads.Settings)
	leads.Settings = settings
	leader, standby = p.start(leads), p.start(testenv.RelayOptions{Settings: standsBy})
	standby.WaitOutput("standing by", patience)
	p.until(leader, "cdc_relay_leader", is(1))
	p.until(standby, "cdc_relay_leader", is(0))
	return leader, standby
}

// takesOver waits until the standby leads.
func (p *play) takesOver(standby *testenv.Relay, stopped time.Time) {
	p.t.Helper()
	p.until(standby, "cdc_relay_leader", is(1))
	standby.WaitReady(patience)
	p.t.Logf("the standby leads %v after the leader was stopped", time.Since(stopped).Round(10*time.Millisecond))
}

// The leader is stopped when the broker has acknowledged a batch and its lane has not noted it.
func stoppedAfterWrite(t *testing.T, st *stage) {
	p := newPlay(t, st)
	p.CreateTopic("order", 1)
	leader, standby := p.pair(testenv.RelayOptions{CrashAt: crash.Produced + ":2:stop"})
	p.Settled(p.insert("1"))
	within := p.insert("2")
	p.arrived(2)
	stopped := time.Now()
	p.Held(within)
	p.takesOver(standby, stopped)
	p.Settled(p.insert("3"))
	p.published("1", "2", "3")

	// What happens next: the old leader wakes, finds that it leads no more, and waits.
	leader.Signal(syscall.SIGCONT)
	p.until(leader, "cdc_relay_leader", is(0))
	leader.WaitReady(patience)
	p.Settled(p.insert("4"))
	p.published("1", "2", "3", "4")
	p.Stop(standby)
	p.until(leader, "cdc_relay_leader", is(1))
	p.Settled(p.insert("5"))
	p.published("1", "2", "3", "4", "5")
	p.Stop(leader)
}

// The leader's batch is on its way when it is stopped, and arrives when the standby has taken over and published the
// same row: a repeat, behind the first copy. (With kafka.transactional_id it is refused, see package fencing.)
func zombieWrites(t *testing.T, st *stage) {
	p := newPlay(t, st)
	p.CreateTopic("order", 1)
	leader, standby := p.pair(testenv.RelayOptions{Settings: st.proxied()})
	p.Settled(p.insert("1"))
	t.Cleanup(st.Proxy().Heal)
	sent := st.Proxy().StallAt(proxy.ToServer, position.Header) // only requests with rows have that
	within := p.insert("2")
	leader.WaitStatus("/readyz", 503, patience) // it has waited for an answer for a while
	<-sent
	leader.Signal(syscall.SIGSTOP)
	stopped := time.Now()
	p.published("1")
	p.Held(within)
	p.takesOver(standby, stopped)
	p.Settled(within)
	p.published("1", "2")
	st.Proxy().Heal() // What the leader has sent arrives.
	p.arrived(3)
	leader.Signal(syscall.SIGCONT)
	p.until(leader, "cdc_relay_leader", is(0))
	leader.WaitReady(patience)

	// What happens next.
	p.Settled(p.insert("3"))
	want := []string{"1", "2", "2", "3"}
	p.published(want...)
	if firsts := scene.Firsts(p.Consume(p.topic, len(want), patience)); !slices.Equal(firsts, []string{"1", "2", "3"}) {
		t.Errorf("first copies are %q", firsts)
	}
	p.Stop(standby)
	p.until(leader, "cdc_relay_leader", is(1))
	p.Settled(p.insert("4"))
	p.published(append(want, "4")...)
	p.Stop(leader)
}
