package endtoend_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Whatever dies, the effects are the committed events: each once, in the order of its key.
func TestExactlyOnceEffects(t *testing.T) {
	l := newLab(t, 3)
	end := l.write()
	faults := []struct {
		name string
		do   func()
	}{
		{"relay killed", l.killRelay},
		{"broker killed", l.killBroker},
		{"consumer killed", l.killConsumer},
		{"consumer killed, again", l.killConsumer},
		{"consumer frozen for longer than its session", l.freezeConsumer},
		{"consumer stopped in order", l.stopConsumer},
		{"consumers' connections ended", l.endConnections},
		{"consumers' database killed", l.killDatabase},
	}
	done := map[string]int{}
	for deadline := time.Now().Add(*duration); time.Now().Before(deadline); {
		// All of them, in an order of its own each time, as far as there is time.
		for _, i := range l.random.Perm(len(faults)) {
			l.wait(200*time.Millisecond, 1500*time.Millisecond)
			f := faults[i]
			l.say("%s", f.name)
			f.do()
			if done[f.name]++; !time.Now().Before(deadline) {
				break
			}
		}
	}
	l.wait(time.Second, 2*time.Second)
	committed := end()
	for _, name := range slices.Sorted(maps.Keys(done)) {
		l.say("%d times: %s", done[name], name)
	}
	l.judge(committed)
}

func (l *lab) killRelay() {
	l.relay.Kill()
	l.wait(0, 500*time.Millisecond)
	l.startRelay()
}

func (l *lab) killBroker() {
	l.t.Helper()
	broker := l.kafka.Brokers()[0]
	if err := broker.Kill(); err != nil {
		l.t.Fatal(err)
	}
	l.wait(0, time.Second)
	if err := broker.Start(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
}

// one chooses a consumer.
func (l *lab) one() int { return l.random.IntN(len(l.consumers)) }

func (l *lab) killConsumer() {
	i := l.one()
	l.consumers[i].Kill()
	l.wait(0, 500*time.Millisecond)
	l.consumers[i] = l.startConsumer()
}

// freezeConsumer has a consumer wake up when others have its partitions.
func (l *lab) freezeConsumer() {
	l.t.Helper()
	c := l.consumers[l.one()]
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := c.Signal(sig); err != nil {
			l.t.Fatal(err)
		}
		if sig == syscall.SIGSTOP {
			l.wait(session, 2*session)
		}
	}
}

func (l *lab) stopConsumer() {
	l.t.Helper()
	i := l.one()
	if code := l.consumers[i].Stop(patience); code != 0 {
		l.t.Errorf("a consumer exits with %d after SIGTERM, want 0:\n%s", code, l.consumers[i].Output())
	}
	l.consumers[i] = l.startConsumer()
}

func (l *lab) endConnections() {
	l.inbox.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`)
}

func (l *lab) killDatabase() {
	l.t.Helper()
	if err := l.server.Stop(l.t.Context(), localstack.Immediate); err != nil {
		l.t.Fatal(err)
	}
	l.wait(0, 1500*time.Millisecond)
	if err := l.server.Start(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
}

// The consumers' database is away for a while under load. That costs no message a delivery, makes none a dead letter, and
// leaves a line in the log when it goes and one when it is back.
func TestDatabaseAway(t *testing.T) {
	l := newLab(t, 1)
	end := l.write()
	testenv.Until(t, patience, func(ctx context.Context) error {
		n, err := l.effects(ctx)
		if err == nil && n < 100 {
			err = fmt.Errorf("%d effects", n)
		}
		return err
	})
	before := l.consumers[0].Output()
	if err := l.server.Stop(t.Context(), localstack.Fast); err != nil {
		t.Fatal(err)
	}
	testenv.Pass(t, *away)
	if err := l.server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.judge(end())
	said := strings.TrimPrefix(l.consumers[0].Output(), before)
	t.Logf("the consumer says:\n%s", said)
	if n := strings.Count(said, "\n"); n > 4 {
		t.Errorf("%d lines, want one for the way out and one for the way back, of consumer and runner", n)
	}
}
