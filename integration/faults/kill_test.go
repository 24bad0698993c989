package faults_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A relay is killed again and again under load, at moments that hurt. What it has left on the topics its successor
// does not send again, but for what arrived there after the successor had looked.
func TestKillRounds(t *testing.T) {
	l := newLab(t, plan{brokers: 1, repeats: checker.LateRepeats})
	skipped := l.killRounds(*kills, points)
	report := l.judge()
	t.Logf("%d rounds, %d of them skipped rows; %d repeats", *kills, skipped, report.Duplicates)
	if 2*skipped < *kills {
		t.Errorf("rows were skipped in %d of %d rounds, want at least half", skipped, *kills)
	}
}

// A relay that does not look at the topics repeats what its predecessor has left unconfirmed, and nothing else.
func TestKillRoundsWithoutResume(t *testing.T) {
	l := newLab(t, plan{
		brokers: 1, repeats: checker.UnconfirmedRepeats, settings: testenv.Settings{"resume.enabled": false},
	})
	rounds := (*kills + 3) / 4
	skipped := l.killRounds(rounds, points)
	report := l.judge()
	t.Logf("%d rounds; %d repeats", rounds, report.Duplicates)
	if skipped > 0 || report.Unconfirmed == 0 {
		t.Errorf("%d rounds skipped rows, %d rows were repeated: want none and some", skipped, report.Unconfirmed)
	}
}

// life is one relay from its start to its death.
type life struct {
	relay    *relay
	death    string
	lasted   time.Duration
	inFlight int // rows, when it was last looked at
	left     checker.Mark
}

// counts says whether the death was one of those that matter: with a batch in flight or a transaction half sent.
func (d *life) counts() bool {
	return d.inFlight > 0 || d.left.Half > 0 || strings.HasPrefix(d.death, "produced")
}

// points are where the relays of killRounds die, as often as they are named here, and from which pass to which. The others
// die by a signal while rows are in flight.
var points = []point{
	{"produced", 20, 320}, // Acknowledged batches come by hundreds a second.
	{"produced", 20, 320},
	{"produced", 20, 320},
	{"watermark", 5, 45},
	{"scanned", 1, 5},
	{"draining", 1, 2},
	{},
	{},
}

// point is a point of package internal/crash, and the passes from least to one before most.
type point struct {
	name        string
	least, most int
}

// letters says what the dead letters were when the relay was dead, if there were any.
func (d *life) letters() string {
	if d.left.Letters == 0 {
		return ""
	}
	return fmt.Sprintf("; %d dead letters, %d replays published", d.left.Letters, d.left.Replayed)
}

// killRounds kills so many relays that count, and prints a line for each. It leaves a last one at work, and returns how
// many deaths had a successor that skipped rows.
func (l *lab) killRounds(rounds int, points []point) (skipped int) {
	l.t.Helper()
	var last *life
	succeeded := func(by *relay, repeats int) {
		if last == nil || !last.counts() {
			return
		}
		if by.seen.skipped > 0 {
			skipped++
		}
		l.say("%s died by %s after %v: %d rows in flight, %d transactions half sent, %d rows past the confirmed position; "+
			"then %d lanes resumed, %d rows skipped, %d repeats%s",
			last.relay.name, last.death, last.lasted.Round(time.Millisecond), last.inFlight, last.left.Half, last.left.Past,
			by.seen.resumed, by.seen.skipped, repeats-last.left.Repeats, last.letters())
	}
	for counted, tried := 0, 0; counted < rounds; tried++ {
		if tried > 20+3*rounds {
			l.t.Fatalf("only %d of %d deaths had anything in flight", counted, tried)
		}
		next := l.live(points)
		succeeded(next.relay, next.left.Repeats)
		if last = next; last.counts() {
			counted++
		}
	}
	final := l.start(never, l.direct())
	l.waitFor(final, "leading", leading)
	l.lookUntil(final, 2*time.Second, func(m metrics) bool { return m.skipped > 0 })
	succeeded(final, last.left.Repeats)
	return skipped
}

// live starts a relay, kills it and notes what it has left.
func (l *lab) live(points []point) *life {
	l.t.Helper()
	d := &life{death: "SIGKILL"}
	crashAt := never
	if at := points[l.random.IntN(len(points))]; at.name != "" {
		crashAt = fmt.Sprintf("%s:%d", at.name, at.least+l.random.IntN(at.most-at.least))
	}
	if l.beforeLife != nil {
		l.beforeLife()
	}
	began := time.Now()
	d.relay = l.start(crashAt, l.direct())
	if crashAt != never {
		d.death = crashAt
	}
	if crashAt == never || crashAt == "draining:1" {
		l.waitFor(d.relay, "leading", leading)
		l.lookUntil(d.relay, l.between(200*time.Millisecond, 1500*time.Millisecond), func(metrics) bool { return false })
		l.lookUntil(d.relay, patience, func(m metrics) bool { return m.inFlight > 0 })
		if crashAt == never {
			d.relay.Kill()
		} else {
			d.relay.Signal(syscall.SIGTERM)
			d.relay.Wait(patience)
		}
	} else if !l.lookUntil(d.relay, 5*time.Second, func(metrics) bool { return false }) {
		d.death = "SIGKILL" // It never came to its point.
		d.relay.Kill()
	}
	d.lasted, d.inFlight = time.Since(began), d.relay.seen.inFlight
	l.waitFree()
	var err error
	if d.left, err = l.check.Mark(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	return d
}

// lookUntil looks at a relay until a condition holds, the relay ends or the time is over. It returns whether the relay
// has ended.
func (l *lab) lookUntil(r *relay, limit time.Duration, condition func(metrics) bool) (ended bool) {
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) && l.t.Context().Err() == nil {
		if r.look(l.t.Context()) && condition(r.seen) {
			return false
		}
		select {
		case <-r.Done():
			return true
		case <-time.After(5 * time.Millisecond):
		}
	}
	return !r.running()
}
