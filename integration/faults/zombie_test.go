package faults_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A leader is stopped, or cut off, with batches in flight. What it has sent arrives while the standby takes over or
// afterwards, and it is woken when the standby has written. With a transactional id nothing of it enters a partition
// that its successor has written to.
func TestZombieRounds(t *testing.T) {
	zombieRounds(t, *zombies, plan{
		brokers: 1, repeats: checker.LateRepeats, fenced: true, poison: poisonous,
		settings: testenv.Settings{"kafka.transactional_id": "fault-lab"},
	})
}

// Without one, what a zombie still sends is repeated, and nothing else.
func TestZombieRoundsWithoutFence(t *testing.T) {
	zombieRounds(t, (*zombies+2)/3, plan{brokers: 1, repeats: checker.LateRepeats, poison: poisonous})
}

// zombieRounds prints a line for each round, and how long each takeover took.
func zombieRounds(t *testing.T, rounds int, p plan) {
	t.Helper()
	z := &zombieLab{lab: newLab(t, p), takeovers: times{}}
	z.leader = z.start(z.crashPoint(0), nil)
	z.waitFor(z.leader, "leading", leading)
	z.standby = z.start(never, z.direct())
	z.waitFor(z.standby, "standing by", standing)
	for round := range rounds {
		z.round(round)
	}
	z.judge()
	t.Logf("takeovers by kind of death, with a wal_sender_timeout of %v:%v", slotTimeout, z.takeovers)
}

// zombieLab has a leader behind the proxies, which becomes the zombie, and a standby that nothing spoils.
type zombieLab struct {
	*lab
	leader, standby *relay
	takeovers       times
}

// stall is a way to make a zombie.
type stall struct {
	name  string
	kind  string // of death, as the takeovers count it; empty where nobody knows when it was
	begin func(z *zombieLab)
	early bool // what is on the way arrives while the standby takes over
}

// The leader of the second stops itself, at the crash point that it was started with.
var stalls = []stall{
	{name: "stopped, its requests arrive during the takeover", kind: "stopped", early: true, begin: func(z *zombieLab) {
		z.hold(proxy.ToServer)
		z.freeze()
	}},
	{name: "stopped before it notes an acknowledgement", begin: (*zombieLab).freezeAtPoint},
	{name: "cut off from PostgreSQL", kind: "black hole", begin: func(z *zombieLab) { z.toPostgres.Stall(proxy.Both) }},
	{name: "stopped, its requests arrive late", kind: "stopped", begin: func(z *zombieLab) {
		z.hold(proxy.ToServer)
		z.freeze()
	}},
	{name: "cut off from all, its requests arrive during the takeover", kind: "black hole", early: true, begin: func(z *zombieLab) {
		z.hold(proxy.ToServer)
		z.toPostgres.Stall(proxy.Both)
	}},
	{name: "stopped, the answers on the way", kind: "stopped", begin: func(z *zombieLab) {
		z.hold(proxy.ToClient)
		z.freeze()
	}},
}

const stopsItself = 1 // index of the stall that needs a crash point

// crashPoint is where the leader of a round stops by itself.
func (z *zombieLab) crashPoint(round int) string {
	if round%len(stalls) != stopsItself {
		return never
	}
	return fmt.Sprintf("produced:%d:stop", 20+z.random.IntN(200))
}

// hold lets nothing pass between the leader and the brokers any more, until something is on its way.
func (z *zombieLab) hold(d proxy.Direction) {
	for _, p := range z.toBrokers {
		p.Stall(d)
	}
	z.lookUntil(z.leader, patience, func(m metrics) bool { return m.inFlight > 0 })
}

func (z *zombieLab) freeze() {
	z.t.Helper()
	z.leader.Signal(syscall.SIGSTOP)
	z.waitFrozen()
}

func (z *zombieLab) waitFrozen() {
	z.t.Helper()
	testenv.Until(z.t, patience, func(context.Context) error {
		if !z.leader.stopped() {
			return errors.New("the leader is not stopped")
		}
		return nil
	})
}

// freezeAtPoint waits until the leader has stopped itself.
func (z *zombieLab) freezeAtPoint() {
	z.t.Helper()
	z.leader.look(z.t.Context())
	z.waitFrozen()
}

func (z *zombieLab) healBrokers() {
	for _, p := range z.toBrokers {
		p.Heal()
	}
}

func (z *zombieLab) round(n int) {
	z.t.Helper()
	before := z.repeated()
	pause(z.t.Context(), z.between(200*time.Millisecond, time.Second))
	how := stalls[n%len(stalls)]
	of, err := z.walsender(z.t.Context())
	if err != nil {
		z.t.Fatal(err)
	}
	how.begin(z)
	began, held := time.Now(), z.leader.seen.inFlight
	if how.early {
		z.waitGone(of)
		// The standby looks four times a second whether the slot is free. The link to PostgreSQL stays as it is: the
		// leader might have the slot again before the standby does.
		pause(z.t.Context(), z.between(0, 400*time.Millisecond))
		z.healBrokers()
	}
	z.waitFor(z.standby, "leading", leading)
	took := time.Since(began)
	if how.kind != "" {
		z.takeovers.add(how.kind, took)
	}
	pause(z.t.Context(), z.between(100*time.Millisecond, time.Second))
	z.healBrokers()
	z.toPostgres.Heal()
	z.leader.Signal(syscall.SIGCONT)
	z.deposed()
	pause(z.t.Context(), 300*time.Millisecond) // What it may still send arrives.
	z.say("round %d: %s %s, %d rows in flight; %s took over after %d ms; the zombie stands by; %d repeats", n+1, z.leader.name,
		how.name, held, z.standby.name, took.Milliseconds(), z.repeated()-before)
	z.swap(n + 1)
}

// deposed waits until the former leader knows that it is none.
func (z *zombieLab) deposed() {
	z.t.Helper()
	testenv.Until(z.t, patience, func(ctx context.Context) error {
		switch {
		case !z.leader.running():
			z.t.Fatalf("the zombie %s has ended:\n%s", z.leader.name, tail(z.leader.Output()))
		case !z.leader.look(ctx) || z.leader.seen.leader:
			return fmt.Errorf("%s still believes that it leads", z.leader.name)
		}
		return nil
	})
}

// swap ends the zombie, starts a new relay behind the proxies and has it take over from the other one.
func (z *zombieLab) swap(next int) {
	z.t.Helper()
	z.leader.Kill()
	z.leader = z.start(z.crashPoint(next), nil)
	z.waitFor(z.leader, "standing by", standing)
	kind, sig := "SIGTERM", syscall.SIGTERM
	if next%2 == 0 {
		kind, sig = "SIGKILL", syscall.SIGKILL
	}
	z.standby.Signal(sig)
	z.takeovers.add(kind, z.waitFor(z.leader, "leading", leading))
	z.standby.Wait(patience)
	z.standby = z.start(never, z.direct())
	z.waitFor(z.standby, "standing by", standing)
}

func (l *lab) repeated() int {
	l.t.Helper()
	n, err := l.check.Repeated(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}
