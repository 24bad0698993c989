// Package regress_test tries on cdc-relay what has gone wrong, in public, with other programs that do its work.
// docs/bug-track-record.md tells which test answers which report.
package regress_test

import (
	"context"
	"errors"
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

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

var scale = flag.Int("regress.scale", 1, "makes tests whose length matters so many times as long; 20 is about what the reports ask for")

const patience = scene.Patience

// cluster is one broker for all tests, with users, and with a proxy in front of it.
type cluster struct {
	once  sync.Once
	kafka *localstack.Kafka
	proxy *proxy.Proxy
	mine  sync.Mutex // held by the test that uses the proxy
	err   error
}

// shared is a package variable because testing offers no other way from TestMain to a test.
var shared cluster

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait more than they compute.
	_ = flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))) // A number never fails.
	code := testenv.Main(m)
	if shared.kafka != nil {
		if err := errors.Join(shared.kafka.Close(), shared.proxy.Close()); err != nil {
			fmt.Fprintln(os.Stderr, "close kafka:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func (c *cluster) start() {
	if c.proxy, c.err = proxy.New(func() string { return c.kafka.AddrsOf(localstack.Proxied)[0] }); c.err != nil {
		return
	}
	c.kafka, c.err = localstack.StartKafka(context.Background(), localstack.KafkaConfig{
		Users:     map[string]string{"nobody": "nothing"}, // Tests make their own.
		Advertise: []string{c.proxy.Addr()},
		// A connection whose login is older has to log in again.
		Properties: map[string]string{"connections.max.reauth.ms": "2000"},
	})
}

func broker(t *testing.T) *cluster {
	t.Helper()
	if err := localstack.HaveJava(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	shared.once.Do(shared.start)
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &shared
}

// viaProxy returns the proxy, which the test has for itself until it ends.
func viaProxy(t *testing.T) *proxy.Proxy {
	t.Helper()
	c := broker(t)
	c.mine.Lock()
	t.Cleanup(func() {
		c.proxy.Heal()
		c.mine.Unlock()
	})
	return c.proxy
}

// stage is one test's outbox, topics and relay.
type stage struct {
	*scene.Scene
	t *testing.T
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{Scene: scene.New(t, broker(t).kafka.Addrs()), t: t}
	s.Exec(`CREATE TABLE public.noise (filler text)`)
	return s
}

// text returns the one value of a query. It uses a connection of its own, as the server may have ended any other.
func (s *stage) text(sql string, args ...any) (value string) {
	s.t.Helper()
	ctx := s.t.Context()
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		s.t.Fatal(err)
	}
	return value
}

// slot reads a value of the slot as text, "" for NULL.
func (s *stage) slot(column string) string {
	s.t.Helper()
	return s.text(`SELECT coalesce(`+column+`::text, '') FROM pg_replication_slots WHERE slot_name = $1`, s.Slot)
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
