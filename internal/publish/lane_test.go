package publish_test

import (
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestNaturalBatching: no timer, and what gathers while a request is out is the next
// batch.
func TestNaturalBatching(t *testing.T) {
	m := newModel("t", 1)
	m.latency = 100 * time.Millisecond
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(1)
		r.settle(10 * time.Millisecond)
		r.put(50)
		r.drain(time.Second)
		if got := r.requests(); got != 2 {
			t.Errorf("%d requests, want 2", got)
		}
		if got := r.metric("cdc_relay_messages_published_total", "t"); got != 51 {
			t.Errorf("messages_published_total = %v, want 51", got)
		}
	})
}

func TestBatchIsBounded(t *testing.T) {
	m := newModel("t", 1)
	m.latency, m.maxBytes = 100*time.Millisecond, 4096
	run(t, publish.Config{MaxMessageBytes: 4096}, m, func(r *rig) {
		r.put(200)
		r.drain(time.Minute)
		if got := r.metric("cdc_relay_publish_failures_total"); got != 0 {
			t.Errorf("%v attempts failed: a batch was larger than the limit", got)
		}
		if got := r.requests(); got > 12 {
			t.Errorf("%d requests for about 36 kB in batches of 4 kB", got)
		}
	})
}

// TestOutcomes is the table of error classes seen from outside: how long a lane
// pauses, whether the bytes stay, and whether it halts.
func TestOutcomes(t *testing.T) {
	tests := map[string]struct {
		fault  fault
		halted bool
	}{
		"no leader": {noLeader, false}, "no broker": {noBroker, false},
		"not leader": {notLeader, false}, "not enough replicas": {notEnough, false}, "unknown topic": {unknownTopic, false},
		"answer lost": {answerLost, false}, "request lost": {requestLost, false}, "request late": {requestLate, false},
		"timed out": {timedOut, false}, "not enough replicas after append": {afterAppend, false}, "storage error": {storageError, false},
		"code not listed": {unlisted, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := newModel("t", 1)
			m.topics["t"][0].faults = []fault{tt.fault}
			run(t, publish.Config{}, m, func(r *rig) {
				r.put(3)
				r.settle(time.Second)
				if halted := r.oldest() != 0; halted != tt.halted {
					t.Errorf("halted = %v, want %v", halted, tt.halted)
				}
				if s := r.p.Snapshot(); tt.halted && (len(s.Lanes) != 1 || !s.Lanes[0].Halted || len(s.Problems()) == 0) {
					t.Errorf("snapshot %+v does not say that the lane is halted", s)
				}
				r.drain(time.Minute)
				r.wantValues("t", 0, "0 1 2")
				if got := r.metric("cdc_relay_publish_failures_total", "t"); got != 1 {
					t.Errorf("publish_failures_total = %v, want 1", got)
				}
				if s := r.p.Snapshot(); len(s.Problems()) != 0 {
					t.Errorf("still a problem: %v", s.Problems())
				}
			})
		})
	}
}

// TestHaltKeepsBytes: a halted lane tries every 30 seconds, says so once and every
// five minutes, and goes on by itself.
func TestHaltKeepsBytes(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = repeat(unlisted, 23)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(2)
		r.settle(time.Second)
		r.put(2) // Must not travel with what is undecided.
		r.settle(10*time.Minute + 10*time.Second)
		if got := r.requests(); got != 21 {
			t.Errorf("%d requests in ten minutes, want 21", got)
		}
		if got := r.logged("publishing halted"); got != 3 {
			t.Errorf("said %d times, want at the change and twice in ten minutes:\n%s", got, r.log.String())
		}
		if !strings.Contains(r.p.Snapshot().Lanes[0].Reason, "may or may not have been appended") {
			t.Errorf("reason %q", r.p.Snapshot().Lanes[0].Reason)
		}
		r.drain(5 * time.Minute)
		r.wantValues("t", 0, "0 1 2 3")
		if r.logged("publishing again") != 1 {
			t.Errorf("recovery was not said:\n%s", r.log.String())
		}
	})
}

func repeat(f fault, n int) []fault {
	out := make([]fault, n)
	for i := range out {
		out[i] = f
	}
	return out
}

// TestQuietRetry: a short failure is not worth a line, a long one is, once.
func TestQuietRetry(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = repeat(notLeader, 4)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(1)
		r.drain(time.Minute)
		if text := r.log.String(); text != "" {
			t.Errorf("logged %s", text)
		}
		m.mu.Lock()
		m.topics["t"][0].faults = repeat(notLeader, 60)
		m.mu.Unlock()
		r.put(1)
		r.drain(5 * time.Minute)
		if r.logged("publishing fails") != 1 || r.logged("publishing again") != 1 {
			t.Errorf("logged %s", r.log.String())
		}
	})
}

// TestTooLarge: a batch above the topic's limit is split in order; a single record
// above it halts the lane, names the row but not its contents, and blocks no other
// lane; neighbours are delivered in order.
func TestTooLarge(t *testing.T) {
	m := newModel("t", 1)
	m.maxBytes = 4096
	run(t, publish.Config{}, m, func(r *rig) {
		m.mu.Lock()
		m.topics["other"] = []*modelPartition{newPartition()}
		m.mu.Unlock()
		m.latency = 50 * time.Millisecond
		r.put(100)
		r.drain(time.Minute)
		want := r.values("t", 0)
		if strings.Count(want, " ") != 99 {
			t.Fatalf("t[0] holds %q", want)
		}
		big := r.record(r.n, "t", "key")
		big.Value = []byte(strings.Repeat("secret", 1000))
		r.publish(big)
		r.n++
		r.put(3)
		r.publish(r.record(1000, "other", "key"))
		r.settle(time.Minute)
		if got := r.values("other", 0); got != "1000" {
			t.Errorf("other topic holds %q: it was held up", got)
		}
		s := r.p.Snapshot()
		if len(s.Lanes) != 1 || !s.Lanes[0].Halted || s.Lanes[0].InFlight != 1 {
			t.Fatalf("lanes %+v, want one halted with one row in flight", s.Lanes)
		}
		reason := s.Lanes[0].Reason
		if !strings.Contains(reason, "id-100") || !strings.Contains(reason, big.Position.String()) || strings.Contains(reason, "secret") {
			t.Errorf("reason %q", reason)
		}
		if got := r.oldest(); got != 101 {
			t.Errorf("oldest = %d, want 101", got)
		}
		m.mu.Lock()
		m.maxBytes = 0 // The topic's limit was raised.
		m.mu.Unlock()
		r.drain(time.Minute)
		if got := r.values("t", 0); !strings.HasSuffix(got, " 101 102 103") {
			t.Errorf("t[0] ends with %q", got[len(got)-40:])
		}
	})
}

// TestRefusedRecord: the rows before the refused one go, those after it wait.
func TestRefusedRecord(t *testing.T) {
	for _, names := range []bool{true, false} {
		m := newModel("t", 1)
		m.names = names
		m.latency = 50 * time.Millisecond
		refuse := true
		m.refuse = func(v string) bool { return refuse && v == "17" }
		run(t, publish.Config{}, m, func(r *rig) {
			r.put(40)
			r.settle(10 * time.Second)
			if got := r.values("t", 0); !strings.HasSuffix(got, " 15 16") {
				t.Errorf("names=%v: t[0] holds %q, want all before 17", names, got)
			}
			if s := r.p.Snapshot(); len(s.Lanes) != 1 || !s.Lanes[0].Halted || !strings.Contains(s.Lanes[0].Reason, "id-17") {
				t.Errorf("names=%v: lanes %+v, want halted at id-17", names, s.Lanes)
			}
			if got := r.requests(); names && got > 6 {
				t.Errorf("%d requests, want few when the broker names the record", got)
			}
			m.mu.Lock()
			refuse = false
			m.mu.Unlock()
			r.drain(time.Minute)
			if got := r.values("t", 0); !strings.HasSuffix(got, " 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39") {
				t.Errorf("names=%v: t[0] holds %q", names, got)
			}
		})
	}
}

// TestUndecidedIsNotSplit: a refusal for size after an attempt without an answer
// proves nothing about that attempt.
func TestUndecidedIsNotSplit(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = []fault{notLeader, requestLost}
	run(t, publish.Config{}, m, func(r *rig) {
		m.latency = 50 * time.Millisecond
		r.put(10)
		r.settle(120 * time.Millisecond)
		m.mu.Lock()
		m.maxBytes = 100
		m.mu.Unlock()
		r.settle(10 * time.Second)
		if s := r.p.Snapshot(); len(s.Lanes) != 1 || !s.Lanes[0].Halted {
			t.Errorf("lanes %+v, want halted", s.Lanes)
		}
		m.mu.Lock()
		m.maxBytes = 0
		m.mu.Unlock()
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2 3 4 5 6 7 8 9")
	})
}

// TestProducerID: nothing is sent before a producer id is there.
func TestProducerID(t *testing.T) {
	m := newModel("t", 1)
	failures := 30
	m.initFn = func() error {
		if failures--; failures >= 0 {
			return kafka.GroupLoadInProgress
		}
		return nil
	}
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(1)
		r.settle(5 * time.Second)
		if r.requests() != 0 {
			t.Error("a batch was sent without a producer id")
		}
		if len(r.p.Snapshot().Problems()) == 0 {
			t.Error("the reason is not shown")
		}
		if r.logged("producer id") != 0 {
			t.Errorf("a short failure is logged: %s", r.log.String())
		}
		r.drain(time.Minute)
		if r.logged("no producer id") != 1 || r.logged("a producer id at last") != 1 {
			t.Errorf("logged %s", r.log.String())
		}
	})
}
