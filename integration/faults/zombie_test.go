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

// A leader is stopped, or cut off, with batches in flight, and woken when the standby has taken over and has written.
// The lab prints how long each takeover took.
func TestZombieRounds(t *testing.T) {
	l := newLab(t, plan{brokers: 1, plain: true, repeats: checker.AnyRepeat})
	takeovers := times{}
	z := &zombieLab{lab: l, takeovers: takeovers}
	z.leader = l.start(z.crashPoint(0), nil)
	l.waitFor(z.leader, "leading", leading)
	z.standby = l.start(never, l.direct())
	l.waitFor(z.standby, "standing by", standing)
	for round := range *zombies {
		z.round(round)
	}
	l.judge()
	t.Logf("takeovers by kind of death, with a wal_sender_timeout of %v:%v", slotTimeout, takeovers)
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
	kind  string // of death, as the takeovers count it
	begin func(z *zombieLab)
}

var stalls = []stall{
	{"stopped with its requests on the way", "stopped", func(z *zombieLab) {
		z.holdBrokers(proxy.ToServer)
		z.stop()
	}},
	{"stopped before it notes an acknowledgement", "stopped", func(z *zombieLab) {
		if z.lookUntil(z.leader, 10*time.Second, func(metrics) bool { return z.leader.stopped() }) {
			z.t.Fatalf("%s has ended:\n%s", z.leader.name, tail(z.leader.Output()))
		}
		z.stop() // If its crash point has not.
	}},
	{"cut off from PostgreSQL", "black hole", func(z *zombieLab) { z.toPostgres.Stall(proxy.Both) }},
	{"stopped with the answers on the way", "stopped", func(z *zombieLab) {
		z.holdBrokers(proxy.ToClient)
		z.stop()
	}},
}

func (z *zombieLab) stall(round int) stall { return stalls[round%len(stalls)] }

// crashPoint is where the leader of a round stops by itself.
func (z *zombieLab) crashPoint(round int) string {
	if round%len(stalls) != 1 {
		return never
	}
	return fmt.Sprintf("produced:%d:stop", 20+z.random.IntN(200))
}

// holdBrokers lets nothing pass between the leader and the brokers any more, once something is on its way.
func (z *zombieLab) holdBrokers(d proxy.Direction) {
	for _, p := range z.toBrokers {
		p.Stall(d)
	}
	z.lookUntil(z.leader, patience, func(m metrics) bool { return m.inFlight > 0 })
}

func (z *zombieLab) stop() {
	z.t.Helper()
	z.leader.Signal(syscall.SIGSTOP)
	testenv.Until(z.t, patience, func(context.Context) error {
		if !z.leader.stopped() {
			return errors.New("the leader is not stopped")
		}
		return nil
	})
}

func (z *zombieLab) round(n int) {
	z.t.Helper()
	before := z.repeated()
	pause(z.t.Context(), z.between(200*time.Millisecond, time.Second))
	how := z.stall(n)
	how.begin(z)
	held := z.leader.seen.inFlight
	took := z.waitFor(z.standby, "leading", leading)
	z.takeovers.add(how.kind, took)
	pause(z.t.Context(), z.between(100*time.Millisecond, time.Second))
	for _, p := range append(z.toBrokers, z.toPostgres) {
		p.Heal()
	}
	z.leader.Signal(syscall.SIGCONT)
	what := "stands by"
	testenv.Until(z.t, patience, func(ctx context.Context) error {
		switch {
		case !z.leader.running():
			what = "has ended"
		case !z.leader.look(ctx) || z.leader.seen.leader:
			return fmt.Errorf("%s still believes that it leads", z.leader.name)
		}
		return nil
	})
	pause(z.t.Context(), 300*time.Millisecond) // What it may still send arrives.
	z.say("round %d: %s %s with %d rows in flight; %s took over after %d ms; woken, the zombie %s; %d repeats", n+1, z.leader.name,
		how.name, held, z.standby.name, took.Milliseconds(), what, z.repeated()-before)
	z.swap(n + 1)
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
