package publish_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestAttempts: a row becomes a dead letter when as many requests that carried it have
// failed; later rows have attempts of their own. An attempt that was not appended for
// certain leaves no doubt.
func TestAttempts(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.topics["t"][0].faults = append([]fault{none}, repeat(noBroker, 5)...)
	run(t, attempting(s, 3), m, func(r *rig) {
		r.put(1)
		r.drain(time.Second)
		r.putBatch(2) // Fails three times.
		r.put(2)      // Are carried by two of the attempts, and by two more.
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 3 4")
		if got, want := s.said(), "1:attempts:3 2:attempts:3"; got != want {
			t.Errorf("dead letters %q, want %q", got, want)
		}
		if got := s.kept[0]; !errors.Is(got.Err, kafka.BrokerNotAvailable) || !got.Last.After(got.First) {
			t.Errorf("first %v, last %v, error %v", got.First, got.Last, got.Err)
		}
		r.wantSettled()
		if p := r.p.Snapshot().Problems(); len(p) > 0 {
			t.Errorf("problems %q", p)
		}
	})
}

// TestAttemptsAreSpaced: to give up rows does not make attempts come faster.
func TestAttemptsAreSpaced(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.topics["t"][0].faults = repeat(noBroker, 1000)
	c := attempting(s, 1)
	c.RetryInitial, c.RetryMax = time.Second, time.Second
	c.MaxMessageBytes = 1024 // Some rows each.
	run(t, c, m, func(r *rig) {
		r.put(40)
		r.settle(time.Minute)
		if got := r.requests(); got > 121 || got < 8 {
			t.Errorf("%d requests in a minute with pauses of half a second or more", got)
		}
		if got := s.values(); got != sequenceOf(0, 40) {
			t.Errorf("dead letters %q", got)
		}
	})
}

// TestAttemptsForEver: without a limit there is none, and without dead letters neither.
func TestAttemptsForEver(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.topics["t"][0].faults = repeat(noBroker, 100)
	run(t, keeping(s), m, func(r *rig) {
		r.put(1)
		r.drain(10 * time.Minute)
		r.wantValues("t", 0, "0")
		if s.calls() != 0 {
			t.Errorf("dead letters %q", s.said())
		}
	})
}

// TestFreeAttempts: what does not count: a topic or permission that is missing, halts,
// and readings that fail.
func TestFreeAttempts(t *testing.T) {
	tests := map[string]func(m *modelBroker){
		"unknown topic (3)": func(m *modelBroker) { m.topics["t"][0].faults = repeat(unknownTopic, 20) },
		"no such topic":     func(m *modelBroker) { m.hidden = true },
		"code not listed":   func(m *modelBroker) { m.topics["t"][0].faults = repeat(unlisted, 3) },
		"reading": func(m *modelBroker) {
			for range 20 {
				m.topics["t"][0].reads = append(m.topics["t"][0].reads, errNoAnswer)
			}
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			m, s := newModel("t", 1), new(letters)
			run(t, attempting(s, 1), m, func(r *rig) {
				r.settle(2 * time.Second)
				r.put(1)
				m.with(func() { prepare(m) })
				r.settle(time.Minute)
				m.with(func() { m.hidden = false })
				r.drain(2 * time.Minute)
				r.wantValues("t", 0, "0")
				if s.calls() != 0 {
					t.Errorf("dead letters %q", s.said())
				}
			})
		})
	}
}

// TestAttemptsWhileBrokersAreDown: where no broker answers the client finds no topic. That
// counts, is decided, and is no answer of a broker.
func TestAttemptsWhileBrokersAreDown(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	run(t, attempting(s, 3), m, func(r *rig) {
		r.put(1)
		r.drain(time.Second)
		m.with(func() { m.down = true })
		r.settle(5 * time.Second)
		r.put(2)
		r.settle(10 * time.Second)
		if got, want := s.said(), "1:attempts:3 2:attempts:3"; got != want {
			t.Errorf("dead letters %q, want %q", got, want)
		}
		if b := r.p.Snapshot().Broker; b.Failures < 2 || b.Reason == "" {
			t.Errorf("the brokers are said to be %+v", b)
		}
		m.with(func() { m.down = false })
		r.settle(5 * time.Second)
		if p := r.p.Snapshot().Problems(); len(p) > 0 {
			t.Errorf("problems %q, though the brokers are back and nothing waits", p)
		}
		r.put(1)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 3")
		r.wantSettled()
	})
}

// TestAttemptsUndecided: a batch that may have been appended is given up once its
// partition is read, not before. What is there is no dead letter; what is not may be
// there later.
func TestAttemptsUndecided(t *testing.T) {
	for name, tt := range map[string]struct {
		fault         fault
		topic, letter string
	}{
		"appended":     {answerLost, "0 1 2 3", ""},
		"not appended": {requestLost, "0 3", "1:attempts:3? 2:attempts:3?"},
	} {
		t.Run(name, func(t *testing.T) {
			m, s := newModel("t", 1), new(letters)
			run(t, attempting(s, 3), m, func(r *rig) {
				r.put(1)
				r.drain(time.Second)
				m.with(func() {
					m.topics["t"][0].faults = []fault{tt.fault, noBroker, noBroker}
					m.topics["t"][0].reads = []error{errNoAnswer, errNoAnswer, errNoAnswer, errNoAnswer, errNoAnswer, errNoAnswer}
				})
				r.putBatch(2)
				r.settle(2 * time.Second)
				if n := len(m.topics["t"][0].reads); s.calls() != 0 || n == 0 {
					t.Fatalf("%d dead letters and %d readings to fail: the partition was not read", s.calls(), n)
				}
				if got := r.oldest(); got != 2 {
					t.Errorf("oldest = %d, want 2", got)
				}
				r.put(1)
				r.drain(time.Minute)
				r.wantValues("t", 0, tt.topic)
				if got := s.said(); got != tt.letter {
					t.Errorf("dead letters %q, want %q", got, tt.letter)
				}
				r.wantSettled()
			})
		})
	}
}

// TestDoubtRemains: a row that was refused in the end may have been published by an
// attempt without an answer, also one of a past session.
func TestDoubtRemains(t *testing.T) {
	for _, tt := range []struct {
		fault     fault
		reconnect bool
	}{{requestLost, false}, {requestLost, true}, {oldOffset, false}} {
		m, s := newModel("t", 1), new(letters)
		run(t, keeping(s), m, func(r *rig) {
			r.put(1)
			r.drain(time.Second)
			m.with(func() {
				m.topics["t"][0].faults = []fault{tt.fault}
				m.refuse = func(v string) bool { return v == "1" || v == "3" }
			})
			r.putBatch(1)
			if tt.reconnect {
				r.reconnect(1)
				r.replay(1)
			}
			r.put(3)
			r.drain(time.Minute)
			r.wantValues("t", 0, "0 2 4")
			if got, want := s.said(), "1:invalid_record:"; !strings.HasPrefix(got, want) || !strings.Contains(got, "? 3:invalid_record:1") || strings.HasSuffix(got, "?") {
				t.Errorf("%+v: dead letters %q", tt, got)
			}
		})
	}
}

// TestOutOfAttemptsIsTriedAgain: a row that the store does not take is tried again like
// any other.
func TestOutOfAttemptsIsTriedAgain(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.topics["t"][0].faults = repeat(noBroker, 3)
	s.failFn = func(*publish.Refusal) error { return errStore }
	run(t, attempting(s, 2), m, func(r *rig) {
		r.put(2)
		r.settle(20 * time.Second)
		if r.requests() != 2 || s.calls() != 1 {
			t.Errorf("%d requests, asked %d times; want 2 and once", r.requests(), s.calls())
		}
		r.settle(30 * time.Second)
		if r.requests() != 3 || s.calls() != 2 {
			t.Errorf("%d requests, asked %d times; want 3 and twice", r.requests(), s.calls())
		}
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1")
		if s.values() != "" {
			t.Errorf("dead letters %q", s.said())
		}
	})
}

// TestAttemptsAreShown: status says how far a row has got and when it is tried next.
func TestAttemptsAreShown(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.topics["t"][0].faults = repeat(noBroker, 100)
	c := attempting(s, 5)
	c.RetryInitial, c.RetryMax = 8*time.Second, 8*time.Second
	run(t, c, m, func(r *rig) {
		r.put(1)
		for r.requests() < 3 {
			r.settle(time.Second / 10)
		}
		snap := r.p.Snapshot()
		l := snap.Lanes[0]
		if l.RowAttempts != 3 || l.MaxAttempts != 5 || !l.NextAttempt.After(time.Now()) {
			t.Fatalf("lane %+v", l)
		}
		want := fmt.Sprintf("t[0] fails (attempt 3 of 5, next in %s): ", time.Until(l.NextAttempt).Round(time.Second/10))
		if p := snap.Problems(); len(p) != 1 || !strings.HasPrefix(p[0], want) {
			t.Errorf("problems %q, want %q", p, want)
		}
	})
}
