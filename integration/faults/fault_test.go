package faults_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
)

// fault is one thing that goes wrong. inject does it, and returns when it is over, with what it has drawn. It is put off
// while ready says so.
type fault struct {
	name   string
	inject func(*pair) string
	ready  func(*pair) bool // nil: always
	long   bool             // comes after those that take seconds, so that a short run has most of them
}

// faults are all that the lab knows. Each comes up once before any comes up again.
var faults = []fault{
	{name: "relay: SIGKILL", inject: func(p *pair) string { return p.endLeader(syscall.SIGKILL) }},
	{name: "relay: SIGTERM", inject: func(p *pair) string { return p.endLeader(syscall.SIGTERM) }},
	{name: "relay: SIGKILL both", inject: (*pair).killBoth},
	{name: "relay: dies before it notes an acknowledgement", inject: func(p *pair) string { return p.crash("produced", 100) }},
	{name: "relay: dies before it reports a position", inject: func(p *pair) string { return p.crash("watermark", 30) }},
	{name: "relay: dies between reading a tail and writing", inject: func(p *pair) string { return p.crash("scanned", 4) }},
	{name: "relay: dies while draining", inject: func(p *pair) string { return p.crash("draining", 1) }},
	{name: "relay: dies after it has reported a position", inject: func(p *pair) string { return p.crash("confirmed", 30) }},
	{name: "relay: dies before a dead letter is committed", inject: func(p *pair) string { return p.crash("dead_letter", 30) }},
	{name: "relay: dies before a lane knows of its dead letter", inject: func(p *pair) string { return p.crash("dead_lettered", 30) }},
	{name: "relay: dies between a replay and its publication", inject: (*pair).crashInReplay},
	{name: "relay: SIGSTOP, shortly", inject: func(p *pair) string { return p.freezeLeader(300*time.Millisecond, slotTimeout-time.Second) }},
	{name: "relay: SIGSTOP, until another leads", inject: func(p *pair) string { return p.freezeLeader(slotTimeout+time.Second, slotTimeout+3*time.Second) }},

	{name: "walsender: SIGSTOP", inject: (*pair).freezeWalsender},
	{name: "PostgreSQL: fast restart", inject: func(p *pair) string { return p.restartServer(localstack.Fast) }},
	{name: "PostgreSQL: immediate restart", inject: func(p *pair) string { return p.restartServer(localstack.Immediate) }},
	{name: "PostgreSQL: failover, planned", inject: func(p *pair) string {
		return p.failOver(func(ctx context.Context, s *localstack.Postgres) error { return s.Stop(ctx, localstack.Fast) })
	}, ready: (*pair).synced},
	{name: "PostgreSQL: failover, unplanned", inject: func(p *pair) string {
		return p.failOver(func(_ context.Context, s *localstack.Postgres) error { return s.Kill() })
	}, ready: (*pair).synced},

	{name: "broker: SIGSTOP", inject: (*pair).freezeBroker},
	{name: "brokers: rolling restart", inject: (*pair).rollBrokers, long: true},
	{name: "brokers: killed all at once", inject: (*pair).killBrokers, long: true},
	{name: "brokers and relays: killed all at once", inject: func(p *pair) string { return p.killBoth() + ", " + p.killBrokers() }, long: true},

	{name: "link to PostgreSQL: reset", inject: func(p *pair) string { return p.reset(p.postgresLink()) }},
	{name: "link to PostgreSQL: cut", inject: func(p *pair) string { return p.spoil(p.postgresLink(), (*proxy.Proxy).Cut) }},
	{name: "link to PostgreSQL: stalled", inject: func(p *pair) string { return p.stall(p.postgresLink()) }},
	{name: "link to PostgreSQL: one direction dropped", inject: func(p *pair) string { return p.drop(p.postgresLink()) }},
	{name: "link to PostgreSQL: slow", inject: func(p *pair) string { return p.slow(p.postgresLink()) }},

	{name: "links to brokers: reset", inject: func(p *pair) string { return p.reset(p.brokerLinks()) }},
	{name: "links to brokers: cut", inject: func(p *pair) string { return p.spoil(p.brokerLinks(), (*proxy.Proxy).Cut) }},
	{name: "links to brokers: stalled", inject: func(p *pair) string { return p.stall(p.brokerLinks()) }},
	{name: "links to brokers: one direction dropped", inject: func(p *pair) string { return p.drop(p.brokerLinks()) }},
	{name: "links to brokers: slow", inject: func(p *pair) string { return p.slow(p.brokerLinks()) }},
}

// hold keeps a fault up for a while.
func (l *lab) hold(least, most time.Duration) time.Duration {
	d := l.between(least, most)
	pause(l.t.Context(), d)
	return d.Round(time.Millisecond)
}

// endLeader ends the leader by a signal, and starts it again a little later.
func (p *pair) endLeader(sig syscall.Signal) string {
	i := p.leader()
	r := p.relays[i]
	r.Signal(sig)
	r.Wait(patience)
	d := p.hold(0, time.Second)
	p.relays[i] = p.start(never, nil)
	return fmt.Sprintf("%s, replaced by %s after %v", r.name, p.relays[i].name, d)
}

func (p *pair) killBoth() string {
	var names []string
	for i, r := range p.relays {
		r.Kill()
		names = append(names, r.name)
		p.relays[i] = p.start(never, nil)
	}
	return strings.Join(names, " and ")
}

// crash has a relay lead that dies at one of the first passes of a point.
func (p *pair) crash(point string, passes int) string {
	at := fmt.Sprintf("%s:%d", point, 1+p.random.IntN(passes))
	for _, r := range p.relays {
		r.Kill()
	}
	doomed := p.start(at, nil)
	p.relays[0] = doomed
	died := p.lookUntil(doomed, 3*time.Second, func(m metrics) bool { return point == "draining" && m.leader && m.inFlight > 0 })
	if !died {
		doomed.Signal(syscall.SIGTERM)
		died = doomed.Wait(patience) < 0 // A stop that has nothing to drain passes no point.
	}
	for i := range p.relays {
		p.relays[i] = p.start(never, nil)
	}
	return fmt.Sprintf("%s at %s (passed: %v)", doomed.name, at, died)
}

// crashInReplay has dead letters replayed while no relay is there, and a relay lead that dies when it comes to them.
func (p *pair) crashInReplay() string {
	for _, r := range p.relays {
		r.Kill()
	}
	n := p.replay(20, p.random.IntN(4) > 0).Replayed
	return fmt.Sprintf("%d replays, %s", n, p.crash("replaying", 5))
}

func (p *pair) freezeLeader(least, most time.Duration) string {
	r := p.relays[p.leader()]
	r.Signal(syscall.SIGSTOP)
	d := p.hold(least, most)
	r.Signal(syscall.SIGCONT)
	return fmt.Sprintf("%s for %v", r.name, d)
}

func (p *pair) freezeWalsender() string {
	ctx := p.t.Context()
	pid, err := p.walsender(ctx)
	if err != nil || pid == 0 {
		return fmt.Sprintf("nobody streams (%v)", err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err.Error()
	}
	d := p.hold(500*time.Millisecond, slotTimeout+2*time.Second)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("process %d for %v", pid, d)
}

func (p *pair) restartServer(mode localstack.StopMode) string {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	began := time.Now()
	if err := p.server.Stop(ctx, mode); err != nil {
		p.t.Error(err)
	}
	stopped := time.Since(began)
	d := p.hold(0, time.Second)
	if err := p.server.Start(ctx); err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprintf("stopped in %v, down for %v", stopped.Round(time.Millisecond), d)
}

func (p *pair) freezeBroker() string {
	b := p.kafka.Brokers()[p.random.IntN(len(p.toBrokers))]
	if err := b.Pause(); err != nil {
		p.t.Fatal(err)
	}
	d := p.hold(500*time.Millisecond, 6*time.Second)
	if err := b.Resume(); err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprintf("broker %d for %v", b.ID(), d)
}

func (p *pair) rollBrokers() string {
	ctx, cancel := context.WithTimeout(p.t.Context(), 3*time.Minute)
	defer cancel()
	began := time.Now()
	for _, b := range p.kafka.Brokers() {
		if err := b.Restart(ctx); err != nil {
			p.t.Fatal(err)
		}
	}
	return fmt.Sprintf("took %v", time.Since(began).Round(time.Millisecond))
}

func (p *pair) killBrokers() string {
	began := time.Now()
	errs := make([]error, len(p.toBrokers))
	var all sync.WaitGroup
	for i, b := range p.kafka.Brokers() {
		all.Go(func() {
			errs[i] = b.Kill()
			if errs[i] == nil {
				errs[i] = b.Start(p.t.Context())
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprintf("all back after %v", time.Since(began).Round(time.Millisecond))
}

func (p *pair) postgresLink() []*proxy.Proxy { return []*proxy.Proxy{p.toPostgres} }

// brokerLinks draws one of the brokers, or all.
func (p *pair) brokerLinks() []*proxy.Proxy {
	if i := p.random.IntN(len(p.toBrokers) + 1); i < len(p.toBrokers) {
		return p.toBrokers[i : i+1]
	}
	return p.toBrokers
}

func (p *pair) reset(links []*proxy.Proxy) string {
	for _, link := range links {
		link.Reset()
	}
	return fmt.Sprintf("%d links", len(links))
}

// spoil does something to links, and heals them after a while.
func (p *pair) spoil(links []*proxy.Proxy, how func(*proxy.Proxy)) string {
	for _, link := range links {
		how(link)
	}
	d := p.hold(300*time.Millisecond, 4*time.Second)
	for _, link := range links {
		link.Heal()
	}
	return fmt.Sprintf("%d links for %v", len(links), d)
}

func (p *pair) direction() (proxy.Direction, string) {
	d := proxy.Direction(1 + p.random.IntN(3))
	return d, map[proxy.Direction]string{proxy.ToServer: "to the server", proxy.ToClient: "to the relay", proxy.Both: "both ways"}[d]
}

// stall holds everything back, and lets it pass in the end.
func (p *pair) stall(links []*proxy.Proxy) string {
	d, name := p.direction()
	return name + ", " + p.spoil(links, func(link *proxy.Proxy) { link.Stall(d) })
}

// drop loses what is sent in one direction, and the connections in the end.
func (p *pair) drop(links []*proxy.Proxy) string {
	d, name := p.direction()
	for _, link := range links {
		link.Stall(d)
	}
	held := p.hold(300*time.Millisecond, 4*time.Second)
	for _, link := range links {
		link.Reset()
		link.Heal()
	}
	return fmt.Sprintf("%s, %d links for %v", name, len(links), held)
}

func (p *pair) slow(links []*proxy.Proxy) string {
	d, name := p.direction()
	delay, rate := p.between(0, 300*time.Millisecond), 20_000+p.random.IntN(1_000_000)
	return fmt.Sprintf("%s, %v late, %d kB/s, %s", name, delay.Round(time.Millisecond), rate/1000,
		p.spoil(links, func(link *proxy.Proxy) {
			link.Delay(d, delay)
			link.Limit(d, rate)
		}))
}
