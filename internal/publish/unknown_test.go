package publish_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// lacking has rows of a topic that is missing for a minute become dead letters.
func lacking(s *letters) publish.Config {
	c := keeping(s)
	c.DeadLetterUnknownTopics, c.UnknownTopicGrace = true, time.Minute
	return c
}

// TestUnknownTopic: rows wait for their topic for a while, then become dead letters, in
// order; once it is there the next ones are published.
func TestUnknownTopic(t *testing.T) {
	m, s := newModel("other", 1), new(letters)
	run(t, lacking(s), m, func(r *rig) {
		r.put(3)
		r.settle(55 * time.Second)
		if s.calls() != 0 || r.oldest() != 1 {
			t.Fatalf("asked %d times, oldest %d: before the grace is over", s.calls(), r.oldest())
		}
		r.drain(10 * time.Second)
		r.put(1) // Does not wait for a minute.
		r.drain(2 * time.Second)
		if got, want := s.said(), "0:unknown_topic:0 1:unknown_topic:0 2:unknown_topic:0 3:unknown_topic:0"; got != want {
			t.Errorf("dead letters %q, want %q", got, want)
		}
		if got := s.kept[0]; got.Last.Sub(got.First) < 59*time.Second || got.Err == nil || got.Topic != "t" {
			t.Errorf("first %v, last %v, error %v", got.First, got.Last, got.Err)
		}
		m.grow("t", 1)
		r.settle(2 * time.Second)
		r.put(2)
		r.drain(2 * time.Second)
		r.wantValues("t", 0, "4 5")
	})
}

// TestUnknownTopicWaits: unless that is configured, or when the topic may be there and
// is only hidden, rows wait, and so does whatever comes before the grace is over.
func TestUnknownTopicWaits(t *testing.T) {
	tests := map[string]func(c *publish.Config, m *modelBroker){
		"not configured": func(c *publish.Config, _ *modelBroker) { c.DeadLetterUnknownTopics = false },
		"no permission":  func(_ *publish.Config, m *modelBroker) { m.hidden = true },
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			m, s := newModel("other", 1), new(letters)
			c := lacking(s)
			prepare(&c, m)
			run(t, c, m, func(r *rig) {
				r.put(2)
				r.settle(time.Hour)
				m.grow("t", 1)
				m.with(func() { m.hidden = false })
				r.drain(time.Minute)
				r.wantValues("t", 0, "0 1")
				if s.calls() != 0 {
					t.Errorf("dead letters %q", s.said())
				}
			})
		})
	}
}

// TestGraceBeginsAnew: a topic that was there, or may have been, in between has not been
// missing all the time.
func TestGraceBeginsAnew(t *testing.T) {
	m, s := newModel("other", 1), new(letters)
	run(t, lacking(s), m, func(r *rig) {
		r.put(1)
		for range 5 {
			r.settle(50 * time.Second)
			m.with(func() { m.hidden = true })
			r.settle(5 * time.Second)
			m.with(func() { m.hidden = false })
		}
		if s.calls() != 0 {
			t.Errorf("dead letters %q", s.said())
		}
		r.settle(65 * time.Second)
		if got := s.values(); got != "0" {
			t.Errorf("dead letters %q, want 0", got)
		}
	})
}

// TestDeletedTopic: so do the rows of a topic that was deleted, those in lanes. A batch
// that may have been appended is given up: there is no partition to find it in.
func TestDeletedTopic(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	run(t, lacking(s), m, func(r *rig) {
		r.put(2)
		r.drain(time.Second)
		m.with(func() { m.topics["t"][0].faults = []fault{requestLost} })
		r.putBatch(2)
		r.settle(time.Millisecond)
		m.with(func() { delete(m.topics, "t") })
		r.put(1)
		r.settle(50 * time.Second)
		if s.calls() != 0 {
			t.Fatalf("dead letters %q: before the grace is over", s.said())
		}
		r.drain(20 * time.Second)
		if got, want := s.said(), "2:unknown_topic:1? 3:unknown_topic:1? 4:unknown_topic:0"; got != want {
			t.Errorf("dead letters %q, want %q", got, want)
		}
		r.wantSettled()
	})
}

// TestDeletedTopicOfPastSession: a batch of a past session is given up too, and its rows
// are refused when they come again.
func TestDeletedTopicOfPastSession(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	run(t, lacking(s), m, func(r *rig) {
		r.put(20)
		r.drain(time.Second)
		m.with(func() { m.topics["t"][0].faults = []fault{requestLost} })
		r.putBatch(1)
		r.settle(time.Millisecond)
		m.with(func() { delete(m.topics, "t") })
		r.reconnect(20)
		r.replay(20)
		r.put(1)
		r.drain(70 * time.Second)
		if got, want := s.said(), "20:unknown_topic:0? 21:unknown_topic:0"; got != want {
			t.Errorf("dead letters %q, want %q", got, want)
		}
	})
}

// TestTopicMadeAgain: a row that comes after the topic has been made again is not
// refused out of an older answer.
func TestTopicMadeAgain(t *testing.T) {
	lackingFor(t, func(r *rig) {
		r.m.grow("t", 1)
		r.put(1)
		r.settle(time.Second / 2)
	})
}

// TestTopicMadeBeforeItsRow: nor out of the layout in the client's cache, which is up to a
// second old, and has no such topic yet.
func TestTopicMadeBeforeItsRow(t *testing.T) {
	lackingFor(t, func(r *rig) {
		r.m.grow("t", 1)
		r.m.with(func() { r.m.unseen = map[string]bool{"t": true} })
		r.put(1)
		r.settle(2 * time.Second)
		r.m.with(func() { r.m.unseen = nil })
		r.settle(2 * time.Second)
	})
}

// lackingFor has a topic that was there, or never was, be missing until a row of it is
// refused, and wants no other dead letter of what comes then.
func lackingFor(t *testing.T, then func(r *rig)) {
	t.Helper()
	for name, lanes := range map[string]bool{"in a lane": true, "waiting": false} {
		t.Run(name, func(t *testing.T) {
			m, s := newModel("other", 1), new(letters)
			if lanes {
				m.grow("t", 1)
			}
			run(t, lacking(s), m, func(r *rig) {
				r.put(1)
				r.settle(time.Second)
				m.with(func() { delete(m.topics, "t") })
				r.put(1)
				r.settle(2 * time.Minute)
				before := s.values()
				if !strings.HasSuffix(before, "1") {
					t.Fatalf("dead letters %q", before)
				}
				then(r)
				if got := s.values(); got != before {
					t.Errorf("dead letters %q, want %q", got, before)
				}
			})
		})
	}
}

// TestTopicAppearsWhileAsking: a row that is in hand when its topic appears is not
// handed to a lane as well; those behind it are.
func TestTopicAppearsWhileAsking(t *testing.T) {
	for _, taken := range []bool{true, false} {
		m, s := newModel("other", 1), new(letters)
		run(t, lacking(s), m, func(r *rig) {
			s.hold = make(chan struct{})
			if !taken {
				s.failFn = func(*publish.Refusal) error { return errStore }
			}
			r.put(3)
			r.settle(65 * time.Second)
			m.grow("t", 2)
			r.settle(5 * time.Second)
			if got := r.oldest(); r.requests() != 0 || got != 1 {
				t.Errorf("%d requests, oldest %d while the first row is in hand", r.requests(), got)
			}
			close(s.hold)
			r.drain(time.Minute)
			want, letter := "1 2", "0"
			if !taken {
				want, letter = "0 1 2", ""
			}
			if got := strings.TrimSpace(r.values("t", 0) + r.values("t", 1)); got != want || s.values() != letter {
				t.Errorf("taken=%v: the topic holds %q and the letters %q, want %q and %q", taken, got, s.values(), want, letter)
			}
		})
	}
}

// TestUnknownTopicStoreFails: a store that fails holds the rows, says why, and is asked
// again.
func TestUnknownTopicStoreFails(t *testing.T) {
	m, s := newModel("other", 1), new(letters)
	s.failFn = func(*publish.Refusal) error { return errStore }
	run(t, lacking(s), m, func(r *rig) {
		r.put(2)
		r.settle(80 * time.Second)
		if p := strings.Join(r.p.Snapshot().Problems(), "\n"); !strings.Contains(p, errStore.Error()) || !strings.Contains(p, "id-0") || r.oldest() != 1 {
			t.Errorf("problems %q, oldest %d", p, r.oldest())
		}
		if s.calls() != 1 {
			t.Errorf("asked %d times in 30 seconds", s.calls())
		}
		s.fail(nil)
		r.drain(20 * time.Second)
		if got := s.values(); got != "0 1" {
			t.Errorf("dead letters %q", got)
		}
	})
}

// TestUnknownTopicSessionEnds: the answer for a row of a past session drops none of the
// next.
func TestUnknownTopicSessionEnds(t *testing.T) {
	m, s := newModel("other", 1), new(letters)
	run(t, lacking(s), m, func(r *rig) {
		release := make(chan struct{})
		s.after = func(*publish.Refusal) { <-release }
		r.put(1)
		r.settle(65 * time.Second)
		r.reconnect(0)
		r.n = 100
		r.put(2)
		r.settle(time.Second)
		close(release)
		r.drain(5 * time.Second)
		if got := s.values(); got != "100 101" {
			t.Errorf("dead letters %q, want those of the session", got)
		}
	})
}

// TestDeadRowsOfMissingTopic: rows that are dead letters already do not wait for a topic
// that is missing, and do wait for one that has not been looked for.
func TestDeadRowsOfMissingTopic(t *testing.T) {
	m := newModel("other", 1)
	run(t, publish.Config{Resume: true}, m, func(r *rig) {
		r.dead(0)
		r.dead(1)
		r.n = 2
		r.put(1)
		r.dead(3)
		r.settle(3 * time.Second)
		if got := r.oldest(); got != 3 {
			t.Errorf("oldest = %d, want 3", got)
		}
		r.n = 4
		m.grow("t", 1)
		r.drain(5 * time.Second)
		r.wantValues("t", 0, "2")
	})
}

// TestTopicIsBack: should the partition be there after all, the numbers of the batch that
// was given up do not go to other rows.
func TestTopicIsBack(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	run(t, lacking(s), m, func(r *rig) {
		r.put(2)
		r.drain(time.Second)
		kept := m.topics["t"]
		m.with(func() { kept[0].faults = []fault{requestLost} })
		r.putBatch(2)
		r.settle(time.Millisecond)
		m.with(func() { delete(m.topics, "t") })
		r.drain(70 * time.Second)
		m.with(func() { m.topics["t"] = kept })
		r.wantHistoryError("made again")
		r.session.History++
		r.reconnect(4)
		r.put(2)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 4 5")
		if got, want := s.said(), "2:unknown_topic:1? 3:unknown_topic:1?"; got != want {
			t.Errorf("dead letters %q, want %q", got, want)
		}
	})
}
