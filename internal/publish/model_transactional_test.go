package publish_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

func fencing() publish.Config { return publish.Config{Resume: true, TransactionalID: "relay-1"} }

// successor starts another process over the same broker, whose session begins at row
// from and finds the rows up to r.n in the server's log.
func (r *rig) successor(from int) *rig {
	r.t.Helper()
	s := &rig{t: r.t, m: r.m, cfg: r.cfg, session: r.session, n: r.n}
	s.alive.Store(true)
	s.session.Alive = s.alive.Load
	s.session.Start, s.session.WALEnd = commitAt(from), commitAt(r.n)
	s.launch()
	s.begin()
	return s
}

// unfenced is longer than a process waits that has fenced nobody.
const unfenced = time.Minute

func (r *rig) epoch() (epoch int16) {
	r.locked(func(p *modelPartition) { epoch = p.producers[1000].epoch })
	return epoch
}

// TestFencedZombie: once the successor has written to a partition, nothing of the
// process before it enters, though that believes to be in charge; and it says why.
func TestFencedZombie(t *testing.T) {
	run(t, fencing(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(unfenced)
		s := r.successor(2)
		defer s.kill()
		s.replay(2)
		s.put(3)
		s.drain(time.Second)
		r.put(4)
		r.settle(20 * time.Second)
		r.alive.Store(false)
		r.wantValues("t", 0, sequenceOf(0, 8))
		if got := strings.Join(r.p.Snapshot().Problems(), "; "); !strings.Contains(got, `another process uses kafka.transactional_id "relay-1"`) {
			t.Errorf("problems of the zombie: %s", got)
		}
	})
}

// TestZombieSlipsIn: what an earlier process writes between the successor's reading
// and its first batch is found by that batch's offset: one row comes twice, in order.
func TestZombieSlipsIn(t *testing.T) {
	run(t, fencing(), newModel("t", 1), func(r *rig) {
		r.put(5)
		r.drain(unfenced)
		r.n += 5
		s := r.successor(2)
		defer s.kill()
		s.replay(2)
		before := s.fetches()
		for s.fetches() == before { // The offsets; then comes the tail.
			s.settle(100 * time.Microsecond)
		}
		s.settle(500 * time.Microsecond)
		r.n -= 5
		r.put(3)
		r.drain(time.Second)
		s.put(2)
		s.drain(time.Second)
		r.wantValues("t", 0, "0 1 2 3 4 5 6 7 5 8 9 10 11")
		if got := s.metric("cdc_relay_duplicates_detected_total"); got != 1 {
			t.Errorf("%v duplicates are counted, want 1", got)
		}
	})
}

// TestUndecidedKeepsItsEpoch: a batch that may have been appended is repeated as it
// is in the next session, and the one after it begins the new epoch.
func TestUndecidedKeepsItsEpoch(t *testing.T) {
	for name, lost := range map[string]fault{"request": requestLost, "answer": answerLost} {
		t.Run(name, func(t *testing.T) {
			run(t, fencing(), newModel("t", 1), func(r *rig) {
				r.put(1)
				r.drain(unfenced)
				r.locked(func(p *modelPartition) { p.faults = []fault{lost} })
				r.putBatch(3)
				before := r.epoch()
				r.reconnect(1)
				r.replay(1)
				r.put(2)
				r.drain(time.Minute)
				r.wantValues("t", 0, sequenceOf(0, 6))
				if got := r.epoch(); got != before+1 {
					t.Errorf("the partition is in epoch %d after %d, want the next", got, before)
				}
			})
		})
	}
}

// TestUndecidedAfterAnother: a batch that another process has overtaken meanwhile is
// given up, and its rows are looked for like those of any other process.
func TestUndecidedAfterAnother(t *testing.T) {
	for name, lost := range map[string]fault{"request": requestLost, "answer": answerLost} {
		t.Run(name, func(t *testing.T) {
			cfg := fencing()
			cfg.RetryInitial, cfg.RetryMax = time.Minute, time.Minute // The other one writes first.
			run(t, cfg, newModel("t", 1), func(r *rig) {
				r.put(1)
				r.drain(unfenced)
				r.locked(func(p *modelPartition) { p.faults = []fault{lost} })
				r.putBatch(3)
				r.settle(10 * time.Millisecond)
				r.p.End()
				s := r.successor(1)
				s.replay(1)
				s.put(2)
				s.drain(time.Second)
				s.kill()
				r.n = s.n
				r.reconnect(1)
				r.replay(1)
				r.put(2)
				r.drain(time.Minute)
				r.wantValues("t", 0, sequenceOf(0, 8))
			})
		})
	}
}

// TestGivenUpWithFence: a batch that cannot be repeated goes on in an epoch that the
// coordinator has given, and nothing is lost or comes twice.
func TestGivenUpWithFence(t *testing.T) {
	run(t, fencing(), newModel("t", 1), func(r *rig) {
		r.put(1)
		r.drain(unfenced)
		before := r.epoch()
		r.locked(func(p *modelPartition) { p.faults = []fault{answerLost, unknownID} })
		r.putBatch(3)
		r.put(2)
		r.drain(time.Minute)
		r.wantValues("t", 0, sequenceOf(0, 6))
		if got := r.epoch(); got != before+1 {
			t.Errorf("the partition is in epoch %d after %d, want the next", got, before)
		}
	})
}
