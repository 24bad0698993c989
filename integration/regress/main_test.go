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
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

var scale = flag.Int("regress.scale", 1, "makes tests whose length matters so many times as long; 20 is about what the reports ask for")

const patience = 40 * time.Second

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
	_ = flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))) // A number never fails.
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
		Properties: map[string]string{
			"connections.max.reauth.ms": "2000", // A connection whose login is older has to log in again.
			"quota.window.num":          "2",    // No more than a second's worth is let pass at once.
		},
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

// scene is one test's outbox.
type scene struct {
	*testenv.Env
	t *testing.T
}

func newScene(t *testing.T) *scene {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = broker(t).kafka.Addrs()
	env.Exec(`CREATE TABLE public.outbox
		(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregatetype text, aggregateid text, payload text)`)
	env.Exec(`CREATE TABLE public.noise (filler text)`)
	return &scene{Env: env, t: t}
}

// start runs a relay that creates what is missing in Postgres, and waits until it is ready.
func (s *scene) start(settings testenv.Settings) *testenv.Relay {
	s.t.Helper()
	r := s.StartRelay(testenv.RelayOptions{Settings: settings, Args: []string{"--init"}})
	r.WaitReady(patience)
	return r
}

func (s *scene) stop(r *testenv.Relay) {
	s.t.Helper()
	if code := r.Stop(patience); code != 0 {
		s.t.Errorf("relay exits with %d after SIGTERM, want 0", code)
	}
}

// text returns the one value of a query as text, "" for NULL. It uses a connection of its own, as the server may have
// ended any other.
func (s *scene) text(sql string, args ...any) string {
	s.t.Helper()
	ctx := s.t.Context()
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var value *string
	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		s.t.Fatal(err)
	}
	if value == nil {
		return ""
	}
	return *value
}

func (s *scene) slot(column string) string {
	s.t.Helper()
	return s.text(`SELECT `+column+`::text FROM pg_replication_slots WHERE slot_name = $1`, s.Slot)
}

// insert commits the numbers in one transaction, as rows of one key, each followed by some padding, and returns a WAL
// position within the transaction: one that the slot passes only when the rows are confirmed.
func (s *scene) insert(from, to, padding int) (within string) {
	s.t.Helper()
	return s.text(`WITH rows AS (
		INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT 'order', 'k', g || repeat('x', $3) FROM generate_series($1::int, $2::int) g RETURNING id)
		SELECT pg_current_wal_insert_lsn()::text FROM (SELECT count(*) FROM rows) AS done`, from, to, padding)
}

// noise writes WAL that is none of the relay's business.
func (s *scene) noise() {
	s.t.Helper()
	s.Exec(`INSERT INTO public.noise SELECT repeat('x', 1000) FROM generate_series(1, 500)`)
	s.Exec(`SELECT pg_switch_wal()`)
}

// passed says whether the slot's confirmed position is beyond one that insert has returned.
func (s *scene) passed(within string) bool {
	s.t.Helper()
	return s.text(`SELECT (confirmed_flush_lsn > $1::pg_lsn)::text FROM pg_replication_slots WHERE slot_name = $2`, within, s.Slot) == "true"
}

// held fails the test when the slot has passed what must not be confirmed.
func (s *scene) held(within string) {
	s.t.Helper()
	if s.passed(within) {
		s.t.Errorf("the slot has passed %s, whose rows are not on their topic", within)
	}
}

func (s *scene) settled(within string) {
	s.t.Helper()
	testenv.Until(s.t, patience, func(context.Context) error {
		if !s.passed(within) {
			return fmt.Errorf("the slot has not passed %s", within)
		}
		return nil
	})
}

// once fails the test unless the topic, which has one partition, begins with the numbers from 1 on, each once.
func (s *scene) once(topic string, to int) {
	s.t.Helper()
	got := numbers(s.Consume(topic, to, patience))
	if want := counted(1, to); !slices.Equal(got[:to], want) {
		s.t.Errorf("%d records are not the rows 1 to %d once each, in order: %.300v", len(got), to, got)
	}
}

// firsts reads the topic, which has one partition, until it has all numbers, and fails the test unless their first
// copies are in order. It returns the numbers that came again.
func (s *scene) firsts(topic string, to int) (again []int) {
	s.t.Helper()
	var firsts []int
	testenv.Until(s.t, patience, func(context.Context) error {
		records := s.Consume(topic, to+len(again), patience)
		firsts, again = nil, nil
		seen := map[int]bool{}
		for _, n := range numbers(records) {
			if seen[n] {
				again = append(again, n)
			} else {
				firsts = append(firsts, n)
			}
			seen[n] = true
		}
		if len(firsts) < to {
			return fmt.Errorf("%d of %d rows", len(firsts), to)
		}
		return nil
	})
	if !slices.Equal(firsts, counted(1, to)) {
		s.t.Errorf("first copies are not the rows 1 to %d in order: %.300v", to, firsts)
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

func counted(from, to int) []int {
	var out []int
	for n := from; n <= to; n++ {
		out = append(out, n)
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
