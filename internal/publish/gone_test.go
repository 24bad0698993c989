package publish_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestTopicDeletedAndMadeAgain: looks that do not find the topic tell, or else the
// offsets; what is not confirmed is published again under another history.
func TestTopicDeletedAndMadeAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		away   time.Duration
		early  bool // rows are written before anybody knows
		reason string
		want   string
	}{
		"for a while": {5 * time.Second, false, "the topic was deleted and made again", "3 4"},
		"at once":     {0, true, "it ends at offset 2, but a record was acknowledged at offset 2", "3 4 3 4"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel("t", 1)
			run(t, publish.Config{}, m, func(r *rig) {
				r.put(3)
				r.drain(time.Second)
				m.mu.Lock()
				delete(m.topics, "t")
				m.mu.Unlock()
				r.settle(tc.away)
				m.grow("t", 1)
				if tc.early {
					r.putBatch(2)
				}
				r.wantHistoryError(tc.reason)
				r.session.History++
				r.begin()
				if tc.early {
					r.replay(3)
				} else {
					r.putBatch(2)
				}
				r.drain(time.Minute)
				r.wantValues("t", 0, tc.want)
			})
		})
	}
}

// TestMadeAgainToldOnce: when the offsets tell that a topic was made again, the next
// look, which finds it back, does not tell so again.
func TestMadeAgainToldOnce(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(3)
		r.drain(time.Second)
		m.mu.Lock()
		delete(m.topics, "t")
		m.mu.Unlock()
		r.settle(4500 * time.Millisecond)
		m.grow("t", 1)
		r.putBatch(1)
		r.settle(100 * time.Millisecond)
		select {
		case err := <-r.p.Reset():
			if err == nil {
				t.Fatal("the history is given up without a reason")
			}
		default:
			t.Fatal("the history is not given up before the next look")
		}
		r.session.History++
		r.begin()
		r.replay(3)
		r.settle(time.Minute)
		r.wantNoReset()
		r.wantValues("t", 0, "3 3")
	})
}

// TestWithdrawnPermissionHidesTheTopic: the client finds no partition then; the look for
// the topic tells why, and the lane halts as when the broker refuses its batches.
func TestWithdrawnPermissionHidesTheTopic(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		hide := func(hidden bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.hidden = hidden
		}
		r.put(1)
		r.drain(time.Second)
		hide(true)
		r.settle(2 * time.Second)
		r.put(2)
		r.settle(10 * time.Second)
		if p := strings.Join(r.p.Snapshot().Problems(), "; "); !strings.Contains(p, "t[0] is halted") || !strings.Contains(p, "Topic Authorization Failed") {
			t.Errorf("problems: %s", p)
		}
		hide(false)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2")
	})
}

// TestAbsentForAMoment: one look that does not find a topic is no proof.
func TestAbsentForAMoment(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(3)
		r.drain(time.Second)
		m.mu.Lock()
		kept := m.topics["t"]
		delete(m.topics, "t")
		m.mu.Unlock()
		r.settle(time.Second)
		m.mu.Lock()
		m.topics["t"] = kept
		m.mu.Unlock()
		r.settle(5 * time.Second)
		r.wantNoReset()
		r.put(1)
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2 3")
	})
}
