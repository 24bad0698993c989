package deadletters

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// A row is given up after three attempts, and so are those behind it, in order. Other topics do not notice. Once the
// topic takes rows again it does not get them, until they are replayed.
func TestThreeAttempts(t *testing.T) {
	t.Parallel()
	s, short, heal := failing(t, kerr.NotEnoughReplicas)
	r := s.Start(testenv.Settings{"max_attempts": 3, "retry.initial": "20ms", "retry.max": "50ms"})
	after := s.Insert("short", "k", "1", "2", "3")
	s.Insert("order", "k", "1")
	s.holds(s.topic, "1")
	letters := s.WaitLetters("dead", 3)
	if got := heads(letters); !slices.Equal(got, scene.Counted(1, 3)) || !slices.IsSorted(ids(letters)) {
		t.Errorf("dead letters %v hold %q, want the three rows in their order", ids(letters), got)
	}
	for _, l := range letters {
		if l.Reason != "attempts" || l.Attempts != 3 || l.MayBePublished || !strings.Contains(strings.ToLower(l.Error), "replicas") {
			t.Errorf("got %+v, want three decided attempts that failed for want of replicas", l)
		}
	}
	s.Settled(after)
	heal()
	s.Settled(s.Insert("short", "k", "4"))
	s.holds(short, "4")
	s.Settled(s.Replay(ids(letters)...))
	s.holds(short, "4", "1", "2", "3")
	s.Stop(r)
}

// While a row is tried, what is shown tells how often, when next and why.
func TestAttemptsAreShown(t *testing.T) {
	t.Parallel()
	s, short, heal := failing(t, kerr.RequestTimedOut)
	r := s.Start(testenv.Settings{"max_attempts": 50, "retry.initial": "500ms", "retry.max": "2s"})
	after := s.Insert("short", "k", "1")
	scene.Reason(t, r, short, " of 50, next in ", "Request Timed Out")
	s.Held(after)
	s.WaitLetters("", 0)
	heal()
	s.Settled(after)
	s.holds(short, "1")
	s.Stop(r)
}

// A batch that was appended and whose answer is lost is looked up in its partition before its rows are given up: they are
// no dead letters.
func TestUnansweredAndFound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := viaProxy(t)
	r := s.Start(testenv.Settings{"kafka.brokers": p.Addr(), "max_attempts": 1})
	s.Settled(s.Insert("order", "k", "1"))
	p.Stall(proxy.ToClient)
	after := s.Insert("order", "k", "2")
	testenv.Until(t, patience, func(context.Context) error {
		if n := s.Count(s.topic); n != 2 {
			return fmt.Errorf("%d records, want 2: the row has not been appended", n)
		}
		return nil
	})
	p.Reset()
	p.Heal()
	s.Settled(after)
	s.Settled(s.Insert("order", "k", "3"))
	s.holds(s.topic, "1", "2", "3")
	s.WaitLetters("", 0)
	s.Stop(r)
}

// One that never got there is given up, and says that it may be on the topic: nobody can know. Never neither, and both
// only if the dead letter says so.
func TestUnansweredAndLost(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := viaProxy(t)
	r := s.Start(testenv.Settings{"kafka.brokers": p.Addr(), "max_attempts": 1})
	s.Settled(s.Insert("order", "k", "1"))
	sent := p.StallAt(proxy.ToServer, position.Header) // only requests with rows have that
	after := s.Insert("order", "k", "2")
	<-sent
	p.Reset()
	p.Heal()
	s.Settled(after)
	s.Settled(s.Insert("order", "k", "3"))
	letters := s.Letters()
	t.Logf("%d dead letters", len(letters))
	if len(letters) == 0 {
		s.holds(s.topic, "1", "2", "3") // The search had the row sent anew.
	} else {
		s.holds(s.topic, "1", "3")
		if l := letters[0]; len(letters) > 1 || l.Reason != "attempts" || !l.MayBePublished || l.Attempts < 1 {
			t.Errorf("got %+v, want one row out of attempts that may be published", letters)
		}
	}
	if n := s.Count(s.topic); n+len(letters) != 3 {
		t.Errorf("%d records and %d dead letters for 3 rows", n, len(letters))
	}
	s.Stop(r)
}

// A permission that is missing is nobody's row's fault, whatever the limits: the rows wait.
func TestPermissionIsNoPoison(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	secret, blind := s.CreateTopic("secret", 1), s.CreateTopic("blind", 1)
	s.Grant(user, s.topic, kmsg.ACLOperationWrite) // Without any it would get no producer id.
	s.Grant(user, secret, kmsg.ACLOperationDescribe)
	settings := testenv.Settings{
		"kafka.brokers":        shared.Kafka.AddrsOf(localstack.SASLPlaintext),
		"kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.username": user, "kafka.sasl.password": password,
		"max_attempts": 1, "on_unknown_topic": "dead_letter", "unknown_topic_grace": "200ms", "shutdown_timeout": "1s",
	}
	r := s.Start(settings)
	within := s.Insert("secret", "k", "1")
	s.Insert("blind", "k", "1")
	scene.Reason(t, r, secret+"[0] is halted", "Topic Authorization Failed", "1 rows wait for topic "+blind)
	testenv.Pass(t, time.Second)
	s.WaitLetters("", 0)
	s.Held(within)
	s.Stop(r)
	s.Grant(user, secret, kmsg.ACLOperationWrite)
	s.Grant(user, blind, kmsg.ACLOperationWrite)
	r = s.Start(settings)
	s.holds(secret, "1")
	s.holds(blind, "1")
	s.WaitLetters("", 0)
	s.Stop(r)
}
