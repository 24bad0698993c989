package faults_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Two relays, three brokers, and one fault after another for as long as -faults.duration says. Some come before the
// relays have got over the last one.
func TestLab(t *testing.T) {
	l := newLab(t, plan{brokers: 3, repeats: checker.LateRepeats})
	p := &pair{lab: l}
	for i := range p.relays {
		p.relays[i] = l.start(never, nil)
	}
	p.recover()
	recoveries, deck := times{}, []fault{}
	for end := time.Now().Add(*duration); time.Now().Before(end) && !t.Failed(); {
		if len(deck) == 0 {
			deck = slices.Clone(faults)
			l.random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		f := deck[0]
		deck = deck[1:]
		pause(t.Context(), l.between(100*time.Millisecond, time.Second))
		l.say("%s", f.name)
		detail := f.inject(p)
		if l.random.IntN(4) == 0 {
			l.say("  %s; and the next", detail)
			continue
		}
		took := p.recover()
		recoveries.add(f.name, took)
		l.say("  %s; streaming again after %d ms", detail, took.Milliseconds())
	}
	l.say("no more faults; streaming again after %d ms", p.recover().Milliseconds())
	l.judge()
	t.Logf("recoveries by kind of fault:%v", recoveries)
}

// pair is a leader and a standby, either of which may be either.
type pair struct {
	*lab
	relays [2]*relay
}

// recover waits until one of the relays streams, and returns how long that took. A relay must not end by itself.
func (p *pair) recover() time.Duration {
	p.t.Helper()
	began := time.Now()
	testenv.Until(p.t, patience, func(ctx context.Context) error {
		for _, r := range p.relays {
			if !r.running() {
				p.t.Fatalf("%s has ended by itself:\n%s", r.name, tail(r.Output()))
			}
			if r.look(ctx) && leading(r.seen) {
				return nil
			}
		}
		return errors.New("no relay is a leader that is ready")
	})
	return time.Since(began)
}

// leader returns the index of the relay that leads. Before a takeover is complete it may be either.
func (p *pair) leader() int {
	for i, r := range p.relays {
		if r.look(p.t.Context()) && r.seen.leader {
			return i
		}
	}
	return 0
}
