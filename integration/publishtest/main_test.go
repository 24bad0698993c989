// Package publishtest runs the cdc-relay binary against real Kafka whose topics, sizes, permissions and brokers change
// under it.
package publishtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
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

const (
	patience = 60 * time.Second // a halted lane tries again every 30 seconds
	user     = "relay"
	password = "s3cret-password"
)

// single is one broker for all tests but those of a cluster. It creates topics at a request for their metadata, has
// permissions, closes idle connections soon, and can be reached through a proxy.
type single struct {
	once  sync.Once
	kafka *localstack.Kafka
	proxy *proxy.Proxy
	err   error
}

// shared is a package variable because testing offers no other way from TestMain to a test.
var shared single

// idleLimit is how long the broker keeps an idle connection.
const idleLimit = 3 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait more than they compute.
	_ = flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))) // A number never fails.
	code := testenv.Main(m)
	if shared.kafka != nil {
		if err := errors.Join(shared.kafka.Close(), shared.proxy.Close()); err != nil {
			fmt.Fprintln(os.Stderr, "close kafka:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func needJava(t *testing.T) {
	t.Helper()
	if err := localstack.HaveJava(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func (s *single) start() {
	if s.proxy, s.err = proxy.New(func() string { return s.kafka.AddrsOf(localstack.Proxied)[0] }); s.err != nil {
		return
	}
	s.kafka, s.err = localstack.StartKafka(context.Background(), localstack.KafkaConfig{
		Users:     map[string]string{user: password},
		Advertise: []string{s.proxy.Addr()},
		Properties: map[string]string{
			"authorizer.class.name":     "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":               "User:ANONYMOUS", // whoever comes without SASL: the brokers, this package
			"auto.create.topics.enable": "true",
			"connections.max.idle.ms":   strconv.Itoa(int(idleLimit.Milliseconds())),
		},
	})
}

// scene is one test's outbox and relay.
type scene struct {
	*testenv.Env
	*admin
	t    *testing.T
	conn *pgx.Conn
}

// newScene gives a test an outbox table of its own and the single broker.
func newScene(t *testing.T) *scene {
	t.Helper()
	needJava(t)
	shared.once.Do(shared.start)
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return newSceneOn(t, shared.kafka)
}

func newSceneOn(t *testing.T, kafka *localstack.Kafka) *scene {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = kafka.Addrs()
	env.Exec(`CREATE TABLE public.outbox
		(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregatetype text, aggregateid text, payload text)`)
	return &scene{Env: env, admin: newAdmin(t, env.Brokers), t: t, conn: env.Conn()}
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

// insert commits rows in one transaction and returns a WAL position within it: one that the slot passes only when the
// rows are confirmed.
func (s *scene) insert(kind, key string, values ...string) (within string) {
	s.t.Helper()
	err := s.conn.QueryRow(s.t.Context(), `WITH rows AS (
		INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT $1, $2, v FROM unnest($3::text[]) WITH ORDINALITY AS u (v, n) ORDER BY n RETURNING id)
		SELECT pg_current_wal_insert_lsn()::text FROM (SELECT count(*) FROM rows) AS done`, kind, key, values).Scan(&within)
	if err != nil {
		s.t.Fatal(err)
	}
	return within
}

// passed says whether the slot's confirmed position is beyond one that insert has returned.
func (s *scene) passed(within string) (ok bool) {
	s.t.Helper()
	if err := s.conn.QueryRow(s.t.Context(), `SELECT confirmed_flush_lsn > $1::pg_lsn FROM pg_replication_slots
		WHERE slot_name = $2`, within, s.Slot).Scan(&ok); err != nil {
		s.t.Fatal(err)
	}
	return ok
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

// reason waits until /readyz is 503 and its text holds all of want.
func reason(t *testing.T, r *testenv.Relay, want ...string) {
	t.Helper()
	testenv.Until(t, patience, func(ctx context.Context) error {
		status, text, err := r.Get(ctx, "/readyz")
		if err == nil && status != 503 {
			err = fmt.Errorf("/readyz answers %d", status)
		}
		for _, w := range want {
			if err == nil && !strings.Contains(text, w) {
				err = fmt.Errorf("/readyz does not say %q: %s", w, text)
			}
		}
		return err
	})
}

// metric is the sum of a metric's samples.
func metric(t *testing.T, r *testenv.Relay, name string) (sum float64) {
	t.Helper()
	_, body, err := r.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += value
	}
	return sum
}

// counted are the numbers from from to to as text.
func counted(from, to int) []string {
	var out []string
	for n := from; n <= to; n++ {
		out = append(out, strconv.Itoa(n))
	}
	return out
}

// values returns the record values in order.
func values(records []testenv.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r.Value)
	}
	return out
}

// firsts are the values of first copies, in order.
func firsts(records []testenv.Record) []string {
	var out []string
	seen := map[string]bool{}
	for _, r := range records {
		if id, _ := r.Header("id"); !seen[id] {
			seen[id] = true
			out = append(out, string(r.Value))
		}
	}
	return out
}
