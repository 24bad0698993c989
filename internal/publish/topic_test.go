package publish_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestMissingTopic: rows wait, the topic is named, nothing is created, and it goes on
// once the topic is there.
func TestMissingTopic(t *testing.T) {
	run(t, publish.Config{}, newModel("", 0), func(r *rig) {
		r.put(3)
		r.settle(10 * time.Second)
		s := r.p.Snapshot()
		if len(s.Waiting) != 1 || s.Waiting[0].Topic != "t" || s.Waiting[0].Rows != 3 || !s.Waiting[0].Missing {
			t.Fatalf("waiting: %+v", s.Waiting)
		}
		if p := s.Problems(); len(p) != 1 || !strings.Contains(p[0], "topic t:") {
			t.Errorf("problems: %v", p)
		}
		if r.oldest() != 1 || r.requests() != 0 || len(r.m.created) != 0 {
			t.Errorf("oldest %d, %d requests, created %v", r.oldest(), r.requests(), r.m.created)
		}
		if r.logged("rows wait for their topic") != 1 {
			t.Errorf("logged %s", r.log.String())
		}
		r.m.grow("t", 4)
		r.drain(5 * time.Second)
		r.put(1)
		r.drain(time.Second)
		for i, p := range r.m.topics["t"] {
			for _, rec := range p.log {
				if rec.stamp.Partitions != 4 || rec.stamp.History != 0xa1 || rec.stamp.Fingerprint != 0xf3 || rec.stamp.Timeline != 3 {
					t.Errorf("t[%d] row %s has stamp %+v", i, rec.value, rec.stamp)
				}
			}
		}
		if p := r.p.Snapshot().Problems(); len(p) != 0 {
			t.Errorf("problems: %v", p)
		}
	})
}

func TestMissingTopicSessionEnds(t *testing.T) {
	run(t, publish.Config{}, newModel("", 0), func(r *rig) {
		r.put(3)
		r.settle(time.Second)
		r.begin()
		if s := r.p.Snapshot(); s.Rows != 0 || s.Bytes != 0 {
			t.Errorf("left behind: %+v", s)
		}
		r.replay(1)
		r.m.grow("t", 1)
		r.drain(5 * time.Second)
		r.wantValues("t", 0, "1 2")
	})
}

func TestCreateTopic(t *testing.T) {
	m := newModel("", 0)
	refusals := 3
	m.createFn = func(string) error {
		if refusals--; refusals >= 0 {
			return errors.New("policy violation")
		}
		return nil
	}
	run(t, publish.Config{CreateTopics: &broker.TopicSpec{Partitions: 2}}, m, func(r *rig) {
		r.put(2)
		r.settle(time.Second)
		if p := r.p.Snapshot().Problems(); len(p) != 1 || !strings.Contains(p[0], "policy violation") {
			t.Errorf("problems: %v", p)
		}
		r.drain(10 * time.Second)
		if r.logged("rows wait for their topic") != 0 {
			t.Error("complains of a topic that it makes itself")
		}
		if len(m.created) != 1 || len(m.topics["t"]) != 2 {
			t.Errorf("created %v with %d partitions", m.created, len(m.topics["t"]))
		}
	})
}

// TestTopicSettings: a topic whose acknowledgements are worth less than its replicas
// promise is named once, as soon as somebody tells.
func TestTopicSettings(t *testing.T) {
	denied := &broker.Error{Op: "read the settings", Err: kafka.TopicAuthorizationFailed}
	noAnswer := &broker.Error{Op: "read the settings", Err: context.DeadlineExceeded}
	for _, c := range []struct {
		name               string
		replicas, min      int
		failures           []error // before the settings are told
		wantWarned, wantIn int     // warnings, requests
	}{
		{name: "one of three", replicas: 3, min: 1, wantWarned: 1, wantIn: 1},
		{name: "two of three", replicas: 3, min: 2, wantIn: 1},
		{name: "one of two", replicas: 2, min: 1, wantIn: 1},
		{name: "not told", replicas: 3, wantIn: 1},
		{name: "not allowed", replicas: 3, min: 1, failures: []error{denied}, wantIn: 1},
		{name: "no answer at first", replicas: 5, min: 1, failures: []error{noAnswer, noAnswer}, wantWarned: 1, wantIn: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newModel("t", 1)
			asked := 0
			m.settings = func(string) (broker.TopicSettings, error) {
				if asked++; asked <= len(c.failures) {
					return broker.TopicSettings{}, c.failures[asked-1]
				}
				return broker.TopicSettings{ReplicationFactor: c.replicas, MinInsyncReplicas: c.min}, nil
			}
			run(t, publish.Config{}, m, func(r *rig) {
				r.put(1)
				r.drain(time.Second)
				r.settle(10 * time.Second)
				if got := r.logged("one replica alone may acknowledge"); got != c.wantWarned || asked != c.wantIn {
					t.Errorf("%d warnings after %d requests, want %d after %d", got, asked, c.wantWarned, c.wantIn)
				}
			})
		})
	}
}

// TestPartitionsGrow: all lanes drain before the new count is used, so keys that move
// stay in order.
func TestPartitionsGrow(t *testing.T) {
	m := newModel("t", 1)
	m.latency = 100 * time.Millisecond
	run(t, publish.Config{}, m, func(r *rig) {
		put := func(n int) {
			for range n {
				r.publish(r.record(r.n, "t", fmt.Sprint("key", r.n%10)))
				r.n++
			}
		}
		put(10)
		hold := make(chan struct{})
		m.mu.Lock()
		m.topics["t"][0].hold = hold
		m.mu.Unlock()
		r.settle(20 * time.Millisecond)
		put(10)
		m.grow("t", 4)
		r.settle(2 * time.Second)
		put(20)
		r.settle(2 * time.Second)
		for i := 1; i < 4; i++ {
			r.wantValues("t", i, "")
		}
		close(hold)
		r.drain(time.Minute)
		moved := 0
		order := map[string]int{}
		for i, p := range m.topics["t"] {
			for _, rec := range p.log {
				if i > 0 {
					moved++
				}
				if want := map[bool]uint32{true: 1, false: 4}[rec.order <= 20]; rec.stamp.Partitions != want {
					t.Errorf("row %s says %d partitions, want %d", rec.value, rec.stamp.Partitions, want)
				}
				order[rec.value] = rec.order
			}
		}
		for i := 10; i < r.n; i++ {
			if order[fmt.Sprint(i)] < order[fmt.Sprint(i-10)] {
				t.Errorf("row %d is before row %d of the same key", i, i-10)
			}
		}
		if moved == 0 || len(order) != 40 {
			t.Errorf("%d rows on new partitions, %d in all", moved, len(order))
		}
		// What is settled is known in the new lanes.
		r.begin()
		for i := range r.n {
			r.publish(r.record(i, "t", fmt.Sprint("key", i%10)))
		}
		r.drain(time.Minute)
		if m.appended != 40 {
			t.Errorf("%d records, want 40", m.appended)
		}
	})
}

// TestGrowthBetweenSessions: a lane's last settled row says nothing about keys that
// another lane held, so after a growth that no drained session has seen rows are
// published again rather than skipped.
func TestGrowthBetweenSessions(t *testing.T) {
	m := newModel("t", 2)
	run(t, publish.Config{}, m, func(r *rig) {
		keys := []string{"key0", "key1", "key2", "key3", "key4", "key5", "key6", "key7"}
		r.settle(time.Second)
		m.mu.Lock()
		m.topics["t"][0].faults = repeat(noBroker, 100) // Only partition 1 gets on.
		m.mu.Unlock()
		for i := range 40 {
			r.publish(r.record(i, "t", keys[i%len(keys)]))
		}
		r.settle(100 * time.Millisecond)
		if r.values("t", 1) == "" || r.values("t", 0) != "" {
			t.Fatal("the keys do not cover both partitions")
		}
		m.grow("t", 3)
		r.p.End()
		m.mu.Lock()
		m.topics["t"][0].faults = nil
		m.mu.Unlock()
		r.settle(5 * time.Second)
		r.begin()
		for i := range 40 {
			r.publish(r.record(i, "t", keys[i%len(keys)]))
		}
		r.drain(time.Minute)
		seen := map[string]bool{}
		for i := range m.topics["t"] {
			for v := range strings.FieldsSeq(r.values("t", i)) {
				seen[v] = true
			}
		}
		if len(seen) != 40 {
			t.Errorf("%d of 40 rows are on the topic", len(seen))
		}
	})
}

// TestPartitionsShrink: after a second look the lanes are given up, the watermark is
// held, and a new session publishes the rows again.
func TestPartitionsShrink(t *testing.T) {
	m := newModel("t", 3)
	run(t, publish.Config{}, m, func(r *rig) {
		hold := make(chan struct{})
		for _, p := range m.topics["t"] {
			p.hold = hold
		}
		put := func() {
			for i := range 12 {
				r.publish(r.record(i, "t", fmt.Sprint("key", i)))
			}
		}
		put()
		r.settle(10 * time.Millisecond)
		m.mu.Lock()
		m.topics["t"] = []*modelPartition{newPartition()}
		m.mu.Unlock()
		r.settle(time.Second)
		select {
		case err := <-r.p.Reset():
			t.Errorf("asked for a new session at the first look: %v", err)
		default:
		}
		r.settle(2 * time.Second)
		select {
		case err := <-r.p.Reset():
			if !strings.Contains(err.Error(), "topic t") {
				t.Errorf("reset: %v", err)
			}
		default:
			t.Fatal("no new session was asked for")
		}
		r.publish(r.record(12, "t", "key12"))
		r.settle(time.Minute)
		if got := r.oldest(); got != 1 {
			t.Errorf("oldest = %d, want 1: the watermark must be held", got)
		}
		r.wantValues("t", 0, "")
		close(hold)
		r.begin()
		put()
		r.publish(r.record(12, "t", "key12"))
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2 3 4 5 6 7 8 9 10 11 12")
		if s := r.p.Snapshot(); s.Rows != 0 || s.Bytes != 0 {
			t.Errorf("%d rows, %d bytes are left", s.Rows, s.Bytes)
		}
	})
}

// TestGivenUpNumbers: a partition that is left after its lane was given up may still
// get, or have got, the lane's last batch; its numbers are not used again.
func TestGivenUpNumbers(t *testing.T) {
	m := newModel("t", 2)
	run(t, publish.Config{}, m, func(r *rig) {
		m.topics["t"][0].faults = repeat(requestLate, 100)
		for i := range 12 {
			r.publish(r.record(i, "t", fmt.Sprint("key", i)))
		}
		r.settle(2 * time.Second)
		m.mu.Lock()
		m.topics["t"] = m.topics["t"][:1]
		m.mu.Unlock()
		r.settle(4 * time.Second)
		if err := <-r.p.Reset(); err == nil {
			t.Error("a new session is asked for without a reason")
		}
		m.mu.Lock()
		m.topics["t"][0].faults = nil
		m.mu.Unlock()
		r.begin()
		for i := range 13 {
			r.publish(r.record(i, "t", fmt.Sprint("key", i)))
		}
		r.drain(time.Minute)
		if got := r.values("t", 0); !strings.HasSuffix(got, "0 1 2 3 4 5 6 7 8 9 10 11 12") {
			t.Errorf("t[0] holds %q", got)
		}
	})
}

func TestRefused(t *testing.T) {
	run(t, publish.Config{MaxRequestBytes: 2000}, newModel("t", 1), func(r *rig) {
		for _, name := range []string{"", ".", "..", "a b", "ä", "a/b", "a:b", strings.Repeat("x", 250)} {
			var refused *publish.RefusedError
			if err := r.p.Publish(r.ctx, r.record(0, name, "k")); !errors.As(err, &refused) || refused.Topic != name {
				t.Errorf("topic %.20q: Publish = %v, want a *RefusedError", name, err)
			}
		}
		big := r.record(0, "t", "k")
		big.Value = []byte(strings.Repeat("secret", 400))
		var refused *publish.RefusedError
		if err := r.p.Publish(r.ctx, big); !errors.As(err, &refused) || !strings.Contains(err.Error(), "kafka.max_request_bytes") || strings.Contains(err.Error(), "secret") {
			t.Errorf("too large: Publish = %v", err)
		}
		m := r.p.Snapshot()
		if m.Rows != 0 {
			t.Errorf("%d rows are queued", m.Rows)
		}
		r.publish(r.record(1, strings.Repeat("x", 249), "k"))
		r.publish(r.record(2, "A-z_0.9", "k"))
	})
}

// TestResetOfAPastSession: that a session should end is not said to the next one.
func TestResetOfAPastSession(t *testing.T) {
	m := newModel("t", 2)
	run(t, publish.Config{}, m, func(r *rig) {
		r.put(1)
		r.drain(time.Second)
		m.mu.Lock()
		m.topics["t"] = m.topics["t"][:1]
		m.mu.Unlock()
		r.settle(5 * time.Second)
		r.begin()
		select {
		case err := <-r.p.Reset():
			t.Errorf("asked to end again: %v", err)
		default:
		}
	})
}

// TestGrowthWaitsForTheAnchor: while a lane waits for its anchor's row, rows go by the
// partition count that brings it there, also those that already waited for a higher
// one. Then the higher count is used.
func TestGrowthWaitsForTheAnchor(t *testing.T) {
	for name, growBefore := range map[string]bool{"while it waits": false, "before it reads": true} {
		t.Run(name, func(t *testing.T) {
			run(t, publish.Config{Resume: true}, newModel("t", 4), func(r *rig) {
				keys := r.keys(4)
				row := func(i int) { r.publish(r.record(i, "t", keys[i%4])) }
				for i := range 40 {
					row(i)
				}
				r.n = 40
				r.drain(time.Second)
				r.restart(20)
				row(20)
				if growBefore {
					// The reading takes longer than the look.
					r.locked(func(*modelPartition) { r.m.latency = 3 * time.Second })
				}
				r.settle(100 * time.Millisecond)
				r.m.grow("t", 6)
				r.settle(5 * time.Second)
				for i := 21; i < 40; i++ {
					row(i)
					r.p.Passed(commitAt(i + 1))
				}
				r.settle(time.Minute)
				r.locked(func(*modelPartition) { r.m.latency = time.Millisecond })
				r.wantNoReset()
				r.settle(10 * time.Second)
				for i := 40; i < 80; i++ {
					r.publish(r.record(i, "t", fmt.Sprint("new", i)))
				}
				r.drain(time.Minute)
				copies := 0
				for i := range 6 {
					copies += len(r.m.topics["t"][i].log)
				}
				if copies != 80 || len(r.m.topics["t"][4].log)+len(r.m.topics["t"][5].log) == 0 {
					t.Errorf("%d copies of 80 rows, %d in the new partitions", copies, len(r.m.topics["t"][4].log)+len(r.m.topics["t"][5].log))
				}
				r.wantNoReset()
			})
		})
	}
}
