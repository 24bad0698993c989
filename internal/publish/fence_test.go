package publish

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// TestFenceFollowsSession: the coordinator is asked once per session, never before one, and everything waits for it.
func TestFenceFollowsSession(t *testing.T) {
	t.Parallel()
	runFence(t, known(), func(r *fenceRig) {
		s := newSequence()
		r.wait(time.Hour)
		if r.wantAsked(); r.problems() != "" {
			t.Errorf("problems of an instance that waits for the slot: %s", r.problems())
		}
		r.wantNone(s)
		hold := make(chan struct{})
		r.c.hold = hold
		r.begin()
		r.wantNone(s)
		if wait, ok := r.readable(); ok || wait != 0 {
			t.Errorf("mayRead = %s, %v before the answer", wait, ok)
		}
		close(hold)
		synctest.Wait()
		r.want(s, 5, 0)
		if wait, ok := r.readable(); !ok || wait != 0 {
			t.Errorf("mayRead = %s, %v after the answer", wait, ok)
		}
		s.advance(3)
		r.want(s, 5, 3)

		r.End()
		r.wantNone(s)
		if _, ok := r.readable(); ok {
			t.Error("partitions may be read without a session")
		}
		r.wait(time.Hour)
		r.wantAsked(nobody())
		r.begin()
		r.want(s, 6, 0)
		r.wantAsked(nobody(), nobody())
		if r.log.Len() != 0 {
			t.Errorf("logged: %s", r.log.String())
		}
	})
}

// TestFenceNotAlive: an instance that may have lost the slot raises no epoch, which would depose its successor.
func TestFenceNotAlive(t *testing.T) {
	t.Parallel()
	runFence(t, known(), func(r *fenceRig) {
		r.setAlive(false)
		r.begin()
		r.wait(time.Minute)
		r.wantAsked()
		r.setAlive(true)
		r.wait(time.Second)
		r.wantAsked(nobody())
	})
}

// TestFenceLateAnswer: an answer to an earlier session is not taken for one to the next.
func TestFenceLateAnswer(t *testing.T) {
	t.Parallel()
	runFence(t, known(), func(r *fenceRig) {
		hold := make(chan struct{})
		r.c.hold = hold
		r.begin()
		r.begin()
		r.c.mu.Lock()
		r.c.hold = nil
		r.c.mu.Unlock()
		close(hold)
		synctest.Wait()
		r.want(newSequence(), 6, 0)
		r.wantAsked(nobody(), nobody())
	})
}

// TestFenceRaise: an epoch whose numbers may be taken is left by way of the coordinator; the other partitions follow
// with their next batch.
func TestFenceRaise(t *testing.T) {
	t.Parallel()
	runFence(t, known(), func(r *fenceRig) {
		r.begin()
		a, b, unused := newSequence(), newSequence(), newSequence()
		r.want(a, 5, 0)
		r.want(b, 5, 0)
		a.advance(2)
		b.advance(2)
		hold := make(chan struct{})
		r.c.hold = hold
		r.mu.Lock()
		ok := r.raise(a) && r.raise(unused)
		old := r.outdated(1001, 5, a) && !r.outdated(1001, 5, b)
		r.mu.Unlock()
		if !ok || !old {
			t.Errorf("raise = %v, outdated as expected: %v", ok, old)
		}
		synctest.Wait()
		r.wantNone(a)
		r.want(b, 5, 2)
		r.want(unused, 5, 0)
		close(hold)
		synctest.Wait()
		r.mu.Lock()
		if !r.outdated(1001, 5, b) {
			t.Error("a batch of the epoch before is not outdated")
		}
		// Another lane gives up the old epoch: the new one is there already.
		r.raise(b)
		r.mu.Unlock()
		synctest.Wait()
		r.want(a, 6, 0)
		r.want(b, 6, 0)
		r.wantAsked(nobody(), epoch(5))
	})
}

// TestFenceLostAnswer: the same request again gives the same epoch.
func TestFenceLostAnswer(t *testing.T) {
	t.Parallel()
	c := known()
	runFence(t, c, func(r *fenceRig) {
		r.begin()
		s := newSequence()
		r.want(s, 5, 0)
		c.mu.Lock()
		c.lost, c.errs = true, []error{io.ErrUnexpectedEOF, nil}
		c.mu.Unlock()
		r.mu.Lock()
		r.raise(s)
		r.mu.Unlock()
		r.wait(time.Second)
		r.want(s, 6, 0)
		r.wantAsked(nobody(), epoch(5), epoch(5))
	})
}

// TestFenceRefresh: daily, and a failure of it stops nothing.
func TestFenceRefresh(t *testing.T) {
	t.Parallel()
	c := known()
	runFence(t, c, func(r *fenceRig) {
		r.begin()
		s := newSequence()
		r.want(s, 5, 0)
		s.advance(9)
		r.wait(refreshEvery - time.Second)
		r.wantAsked(nobody())
		c.mu.Lock()
		c.errs = []error{kafka.NotCoordinatorForGroup, io.EOF}
		c.mu.Unlock()
		r.wait(time.Second)
		if r.want(s, 5, 9); r.problems() != "" {
			t.Errorf("problems: %s", r.problems())
		}
		r.wait(time.Second)
		r.want(s, 6, 0)
		r.wantAsked(nobody(), epoch(5), epoch(5), epoch(5))
		r.wait(refreshEvery)
		r.want(s, 7, 0)
	})
}

// TestFenceEpochZero: who was given epoch 0 has fenced nobody, says so, and waits before it reads.
func TestFenceEpochZero(t *testing.T) {
	t.Parallel()
	runFence(t, &coordinator{}, func(r *fenceRig) {
		r.begin()
		r.want(newSequence(), 0, 0)
		if wait, ok := r.readable(); ok || wait != unfencedPause {
			t.Errorf("mayRead = %s, %v; want to wait for the request time-out", wait, ok)
		}
		r.wait(unfencedPause)
		if wait, ok := r.readable(); !ok || wait != 0 {
			t.Errorf("mayRead = %s, %v after the request time-out", wait, ok)
		}
		if n := strings.Count(r.log.String(), "level=WARN"); n != 1 || !strings.Contains(r.log.String(), "relay-1") {
			t.Errorf("%d warnings: %s", n, r.log.String())
		}
		r.begin()
		if _, ok := r.readable(); !ok {
			t.Error("the next session waits, though it has fenced")
		}
		// Forgotten while running: a new id, which nobody else can have been given.
		s := newSequence()
		r.want(s, 1, 0)
		r.c.forget()
		r.wait(refreshEvery)
		if got := r.numbered(s); got == nil || *got != (broker.Producer{ID: 1002}) || r.problems() != "" {
			t.Errorf("number = %v after the id was forgotten; problems: %s", got, r.problems())
		}
	})
}

// TestFenceOvertaken: a higher epoch while the slot is ours is another process with our id. It is said, and after the
// pause of a halt the id is asked for again.
func TestFenceOvertaken(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *fenceRig){
		"by the coordinator": func(r *fenceRig) { r.wait(refreshEvery) },
		"by a partition": func(r *fenceRig) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if err := r.overtaken(time.Now()); err == nil || !strings.Contains(err.Error(), "kafka.transactional_id") {
				r.t.Errorf("overtaken = %v", err)
			}
			// Another lane that finds out does not put off the end of the pause.
			if err := r.overtaken(time.Now().Add(time.Hour)); err == nil {
				r.t.Error("the second lane is told nothing")
			}
		},
	}
	for name, find := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runFence(t, known(), func(r *fenceRig) {
				r.begin()
				s := newSequence()
				r.want(s, 5, 0)
				if _, err := r.c.InitTransactional(t.Context(), "relay-1", nobody()); err != nil {
					t.Fatal(err)
				}
				find(r)
				synctest.Wait()
				r.wantNone(s)
				if got := r.problems(); !strings.Contains(got, `another process uses kafka.transactional_id "relay-1"`) {
					t.Errorf("problems: %s", got)
				}
				if _, ok := r.readable(); ok {
					t.Error("partitions may be read though another process writes")
				}
				r.wait(haltPause - time.Second)
				r.wantNone(s)
				r.wait(time.Second)
				if r.want(s, 7, 0); r.problems() != "" {
					t.Errorf("problems after the pause: %s", r.problems())
				}
			})
		})
	}
}

// TestFenceOvertakenAndDeposed: who may have lost the slot is told by the end of its session, not by this.
func TestFenceOvertakenAndDeposed(t *testing.T) {
	t.Parallel()
	runFence(t, known(), func(r *fenceRig) {
		r.begin()
		r.setAlive(false)
		r.mu.Lock()
		err := r.overtaken(time.Now())
		r.mu.Unlock()
		if err != nil || r.problems() != "" {
			t.Errorf("overtaken = %v, problems: %s", err, r.problems())
		}
	})
}

// TestFenceDenied: a permission that is missing is said at once, and the id is used once it is there.
func TestFenceDenied(t *testing.T) {
	t.Parallel()
	c := known()
	c.errs = []error{kafka.TransactionalIDAuthorizationFailed}
	runFence(t, c, func(r *fenceRig) {
		r.begin()
		s := newSequence()
		r.wantNone(s)
		if !strings.Contains(r.problems(), "no producer id: [53]") || strings.Count(r.log.String(), "level=ERROR") != 1 {
			t.Errorf("problems %q, logged %q", r.problems(), r.log.String())
		}
		r.wait(haltPause - time.Second)
		r.wantNone(s)
		r.wait(time.Second)
		if r.want(s, 5, 0); r.problems() != "" || !strings.Contains(r.log.String(), "a producer id at last") {
			t.Errorf("problems %q, logged %q", r.problems(), r.log.String())
		}
	})
}

// TestFenceNewSessionAtOnce: a new session does not wait out the pauses of the one
// before, and what kept that one from sending is no problem of an instance without one.
func TestFenceNewSessionAtOnce(t *testing.T) {
	t.Parallel()
	c := known()
	c.errs = []error{kafka.TransactionalIDAuthorizationFailed}
	runFence(t, c, func(r *fenceRig) {
		r.begin()
		r.End()
		if got := r.problems(); got != "" {
			t.Errorf("problems without a session: %s", got)
		}
		r.begin()
		r.want(newSequence(), 5, 0)
	})
}

// TestPlainRaise: without a transactional id the epoch is raised here, for one partition.
func TestPlainRaise(t *testing.T) {
	t.Parallel()
	p := &Publisher{producer: broker.Producer{ID: -1}}
	a, b := newSequence(), newSequence()
	number := func(s *sequence, epoch int16, first int32) {
		t.Helper()
		id, e, n, ok := p.number(s)
		if !ok || id != 9 || e != epoch || n != first {
			t.Errorf("number = %d, %d, %d, %v; want 9, %d, %d", id, e, n, ok, epoch, first)
		}
	}
	if _, _, _, ok := p.number(a); ok {
		t.Error("numbers without a producer id")
	}
	p.producer.ID = 9
	number(a, 0, 0)
	number(b, 0, 0)
	a.advance(5)
	b.advance(5)
	a.last, b.last = 4, 4
	if p.outdated(9, 0, a) || !p.raise(a) || !p.outdated(9, 0, a) || p.outdated(9, 0, b) {
		t.Error("outdated is not about the partition's epoch")
	}
	number(a, 1, 0)
	number(b, 0, 5)
	if a.last != 4 {
		t.Errorf("last = %d: the offsets do not depend on the epoch", a.last)
	}
	if wait, ok := p.mayRead(time.Now()); wait != 0 || !ok {
		t.Error("partitions may not be read")
	}
	if err := p.overtaken(time.Now()); err != nil {
		t.Errorf("overtaken = %v", err)
	}
}
