// Package regress_test tries on cdc-relay what has gone wrong, in public, with other programs that do its work.
// docs/bug-track-record.md tells which test answers which report.
package regress_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

var scale = flag.Int("regress.scale", 1, "makes tests whose length matters so many times as long; 20 is about what the reports ask for")

const patience = scene.Patience

// shared is one broker for all tests, with users, and with a proxy in front of it. It is a package variable because
// testing offers no other way from TestMain to a test.
var shared struct {
	testenv.Cluster
	mine sync.Mutex // held by the test that uses the proxy
}

func TestMain(m *testing.M) {
	testenv.Parallel(max(8, runtime.GOMAXPROCS(0))) // These tests wait more than they compute.
	os.Exit(testenv.Main(m, shared.Close))
}

func broker(t *testing.T) *testenv.Cluster {
	t.Helper()
	shared.Start(t, localstack.KafkaConfig{
		Users: map[string]string{"nobody": "nothing"}, // Tests make their own.
		// A connection whose login is older has to log in again.
		Properties: map[string]string{"connections.max.reauth.ms": "2000"},
	})
	return &shared.Cluster
}

// viaProxy returns the proxy, which the test has for itself until it ends.
func viaProxy(t *testing.T) *proxy.Proxy {
	t.Helper()
	c := broker(t)
	shared.mine.Lock()
	t.Cleanup(func() {
		c.Heal()
		shared.mine.Unlock()
	})
	return c.Proxy()
}

// stage is one test's outbox, topics and relay.
type stage struct {
	*scene.Scene
	t *testing.T
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{Scene: scene.New(t, broker(t).Kafka.Addrs()), t: t}
	s.Exec(`CREATE TABLE public.noise (filler text)`)
	return s
}

// insert commits the numbers in one transaction, as rows of one key, each followed by some padding. It returns what
// [scene.Scene.Insert] does.
func (s *stage) insert(from, to, padding int) (within string) {
	s.t.Helper()
	values := scene.Counted(from, to)
	for i := range values {
		values[i] += strings.Repeat("x", padding)
	}
	return s.Insert("order", "k", values...)
}

// noise writes WAL that is none of the relay's business.
func (s *stage) noise() {
	s.t.Helper()
	s.Exec(`INSERT INTO public.noise SELECT repeat('x', 1000) FROM generate_series(1, 500)`)
	s.Exec(`SELECT pg_switch_wal()`)
}

// once fails the test unless the topic, which has one partition, holds the numbers from 1 on, each once and in order.
func (s *stage) once(topic string, to int) {
	s.t.Helper()
	if again := s.firsts(topic, to); len(again) > 0 {
		s.t.Errorf("%d of %d rows came again: %.300s", len(again), to, fmt.Sprint(again))
	}
}

// firsts waits until the topic, which has one partition, holds the numbers from 1 on, and fails the test unless their
// first copies are in order. It returns the numbers that came again.
func (s *stage) firsts(topic string, to int) (again []int) {
	s.t.Helper()
	var firsts []string
	testenv.Until(s.t, patience, func(context.Context) error {
		records := s.Consume(topic, s.Count(topic), patience)
		if firsts = scene.Firsts(records); len(firsts) < to {
			return fmt.Errorf("%d of %d rows", len(firsts), to)
		}
		again = nil
		seen := map[int]bool{}
		for _, n := range numbers(records) {
			if seen[n] {
				again = append(again, n)
			}
			seen[n] = true
		}
		return nil
	})
	for i := range firsts {
		firsts[i] = strings.TrimRight(firsts[i], "x")
	}
	if !slices.Equal(firsts, scene.Counted(1, to)) {
		s.t.Errorf("first copies are not the rows 1 to %d in order: %.300s", to, fmt.Sprint(firsts))
	}
	return again
}

// numbers are the record values in order, without padding.
func numbers(records []testenv.Record) []int {
	out := make([]int, len(records))
	for i, r := range records {
		out[i], _ = strconv.Atoi(strings.TrimRight(string(r.Value), "x")) // 0 is no row's number.
	}
	return out
}

// every calls do until the time is over.
func every(pause, total time.Duration, do func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for end := time.Now().Add(total); time.Now().Before(end); <-tick.C {
		do()
	}
}

// says waits until /readyz answers with the status and a text that holds want.
func says(t *testing.T, r *testenv.Relay, status int, want string) {
	t.Helper()
	testenv.Until(t, patience, func(ctx context.Context) error {
		got, text, err := r.Get(ctx, "/readyz?verbose")
		if err == nil && (got != status || !strings.Contains(text, want)) {
			err = fmt.Errorf("/readyz answers %d %q, want %d with %q", got, text, status, want)
		}
		return err
	})
}
