package publish_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// letters is a store of dead letters, in the order in which they were written.
type letters struct {
	mu     sync.Mutex
	kept   []publish.Refusal // copies
	asked  int
	failFn func(r *publish.Refusal) error
	hold   chan struct{} // while not nil a call waits for it, or for its context
	after  func(r *publish.Refusal)
}

var errStore = errors.New("the store is full")

func (s *letters) take(ctx context.Context, r *publish.Refusal) error {
	s.mu.Lock()
	s.asked++
	hold, fail := s.hold, s.failFn
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	if s.after != nil {
		s.after(r)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if fail != nil {
		if err := fail(r); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := *r
	c.Key, c.Value, c.ID = bytes.Clone(r.Key), bytes.Clone(r.Value), bytes.Clone(r.ID)
	s.kept = append(s.kept, c)
	return nil
}

func (s *letters) fail(f func(r *publish.Refusal) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failFn = f
}

func (s *letters) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// values are what the dead letters hold.
func (s *letters) values() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.kept {
		out = append(out, string(r.Value))
	}
	return strings.Join(out, " ")
}

// said is each dead letter's value, reason, attempts and a ? if it may be published.
func (s *letters) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.kept {
		text := fmt.Sprintf("%s:%s:%d", r.Value, r.Reason, r.Attempts)
		if r.MayBePublished {
			text += "?"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// keeping is a configuration with a store.
func keeping(s *letters) publish.Config {
	return publish.Config{Resume: true, DeadLetter: true, Refused: s.take}
}

// attempting is one that limits attempts.
func attempting(s *letters, limit int) publish.Config {
	c := keeping(s)
	c.MaxAttempts = limit
	return c
}

// dead publishes row i as the dead letter that it is.
func (r *rig) dead(i int) {
	r.t.Helper()
	rec := r.record(i, "t", "key")
	rec.Dead = true
	r.publish(rec)
}

func (r *rig) wantSettled() {
	r.t.Helper()
	if got := r.oldest(); got != 0 {
		r.t.Errorf("oldest = %d, want every row settled: %v", got, r.p.Snapshot().Problems())
	}
}

// with does something to the model under its lock.
func (m *modelBroker) with(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}
