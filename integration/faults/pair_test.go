package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Two relays, three brokers, and one fault after another for as long as -faults.duration says. Some come before the
// relays have got over the last one.
func TestLab(t *testing.T) {
	l := newLab(t, plan{brokers: 3, standby: true, repeats: checker.LateRepeats, poison: poisonous})
	p := &pair{lab: l}
	for i := range p.relays {
		p.relays[i] = l.start(never, nil)
	}
	p.recover()
	known := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !strings.Contains(f.name, *only) })
	recoveries, deck := times{}, []fault{}
	for end := time.Now().Add(*duration); time.Now().Before(end) && len(known) > 0 && !t.Failed(); {
		if len(deck) == 0 {
			deck = slices.Clone(known)
			l.random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			long := slices.DeleteFunc(slices.Clone(deck), func(f fault) bool { return !f.long })
			deck = append(slices.DeleteFunc(deck, func(f fault) bool { return f.long }), long...)
		}
		pause(t.Context(), l.between(100*time.Millisecond, time.Second))
		i := slices.IndexFunc(deck, func(f fault) bool { return f.ready == nil || f.ready(p) })
		if i < 0 {
			continue
		}
		f := deck[i]
		deck = slices.Delete(deck, i, i+1)
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
	for _, f := range deck {
		l.say("no time for %s", f.name)
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

// recover waits until one of the relays leads, is ready, and the slot's position moves, and returns how long that took.
// A relay must not end by itself.
func (p *pair) recover() time.Duration {
	p.t.Helper()
	began := time.Now()
	var before, now uint64
	testenv.Until(p.t, 3*patience, func(ctx context.Context) error {
		if slices.IndexFunc(p.relays[:], func(r *relay) bool { return r.look(ctx) && leading(r.seen) }) < 0 {
			for _, r := range p.relays {
				if !r.running() {
					p.t.Fatalf("%s has ended by itself:\n%s", r.name, tail(r.Output()))
				}
			}
			return errors.New("no relay is a leader that is ready")
		}
		var err error
		if now, err = p.confirmed(ctx); err == nil && before == 0 {
			before = now
		}
		if err == nil && now <= before {
			err = fmt.Errorf("the confirmed position stays at %X", now)
		}
		return err
	})
	return time.Since(began)
}

// confirmed returns the slot's confirmed position.
func (l *lab) confirmed(ctx context.Context) (lsn uint64, err error) {
	err = query(ctx, l.env.URL, `SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1`,
		&lsn, l.env.Slot)
	return lsn, err
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
