// Package fencing_test runs the cdc-relay binary with kafka.transactional_id on real Kafka: an earlier relay that writes
// on is kept out, whatever it has on its way.
package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
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
	patience = 90 * time.Second // a halted relay tries again every 30 seconds
	user     = "relay"
	password = "s3cret-password"
	// senderTimeout is how long a relay that is stopped keeps the slot.
	senderTimeout = 2 * time.Second
)

// single is one broker for all tests but that of expiry, behind a proxy.
type single struct {
	once  sync.Once
	kafka *localstack.Kafka
	proxy *proxy.Proxy
	err   error
}

// shared is a package variable because testing offers no other way from TestMain to a test.
var shared single

func TestMain(m *testing.M) {
	code := testenv.Main(m)
	if shared.kafka != nil {
		if err := errors.Join(shared.kafka.Close(), shared.proxy.Close()); err != nil {
			fmt.Fprintln(os.Stderr, "close kafka:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func (s *single) start() {
	if s.proxy, s.err = proxy.New(func() string { return s.kafka.AddrsOf(localstack.Proxied)[0] }); s.err != nil {
		return
	}
	s.kafka, s.err = localstack.StartKafka(context.Background(), localstack.KafkaConfig{
		Users:     map[string]string{user: password},
		Advertise: []string{s.proxy.Addr()},
		Properties: map[string]string{
			// Everybody may do everything until a test makes a rule for one resource.
			"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":                    "User:ANONYMOUS",
			"allow.everyone.if.no.acl.found": "true",
		},
	})
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

// scene is one outbox with the relays of its slot, which share a transactional id.
type scene struct {
	*testenv.Env
	t    *testing.T
	id   string
	conn *pgx.Conn
	rows int
}

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
	return &scene{Env: env, t: t, id: env.Slot, conn: env.Conn()}
}

// relay is one process.
type relay struct {
	*testenv.Relay
	t *testing.T
}

// start runs a relay of the scene. crashAt is a point of package internal/crash, or "".
func (s *scene) start(crashAt string, more testenv.Settings) *relay {
	s.t.Helper()
	settings := testenv.Settings{"kafka.transactional_id": s.id, "postgres.wal_sender_timeout": senderTimeout.String()}
	for key, value := range more {
		settings[key] = value
	}
	return &relay{s.StartRelay(testenv.RelayOptions{Settings: settings, CrashAt: crashAt, Args: []string{"--init"}}), s.t}
}

// proxied are the settings of a relay whose requests can be held back.
func proxied() testenv.Settings {
	return testenv.Settings{"kafka.brokers": []string{shared.proxy.Addr()}}
}

// plain are the settings of a relay whose user has no more permissions than it was given.
func plain() testenv.Settings {
	return testenv.Settings{
		"kafka.brokers":        shared.kafka.AddrsOf(localstack.SASLPlaintext),
		"kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.username": user, "kafka.sasl.password": password,
	}
}

// insert commits the next n rows, numbered from 1, all of one key, in one transaction.
func (s *scene) insert(n int) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), `INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT 'order', 'key', n FROM generate_series($1::int, $2) AS n`, s.rows+1, s.rows+n); err != nil {
		s.t.Fatal(err)
	}
	s.rows += n
}

// values waits for n records of a topic and returns their values in order.
func (s *scene) values(topic string, n int) (out []string) {
	s.t.Helper()
	for _, r := range s.Consume(topic, n, patience) {
		out = append(out, string(r.Value))
	}
	return out
}

// numbers are the values from a to b.
func numbers(a, b int) (out []string) {
	for n := a; n <= b; n++ {
		out = append(out, strconv.Itoa(n))
	}
	return out
}

// is waits until the relay is ready in a role.
func (r *relay) is(role string) {
	r.t.Helper()
	testenv.Until(r.t, patience, func(ctx context.Context) error {
		status, text, err := r.Get(ctx, "/readyz?verbose")
		if err == nil && (status != 200 || !strings.Contains(text, "ok: "+role)) {
			err = fmt.Errorf("/readyz answers %d %q, want %s", status, text, role)
		}
		return err
	})
}

// says is a check that /readyz gives a reason.
func (r *relay) says(reason string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, body, err := r.Get(ctx, "/readyz")
		if err == nil && !strings.Contains(body, reason) {
			err = fmt.Errorf("/readyz says %q", body)
		}
		return err
	}
}

// waitMetric waits until the sum of a metric's samples with the label, if one is given, is at least n.
func (r *relay) waitMetric(name, label string, n int) {
	r.t.Helper()
	testenv.Until(r.t, patience, func(ctx context.Context) error {
		got, err := r.metric(ctx, name, label)
		if err == nil && got < n {
			err = fmt.Errorf("%s %s is %d, want %d", name, label, got, n)
		}
		return err
	})
}

func (r *relay) wantMetric(name string, want int) {
	r.t.Helper()
	if got, err := r.metric(r.t.Context(), name, ""); err != nil || got != want {
		r.t.Errorf("%s = %d, %v; want %d", name, got, err, want)
	}
}

func (r *relay) metric(ctx context.Context, name, label string) (sum int, err error) {
	_, body, err := r.Get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(body) {
		series, number, _ := strings.Cut(strings.TrimSpace(line), " ") // No label has a space.
		bare, labels, _ := strings.Cut(series, "{")
		if bare != "cdc_relay_"+name || !strings.Contains(labels, label) {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return 0, err
		}
		sum += int(n)
	}
	return sum, nil
}

// waitStopped waits until the process is stopped by a signal: state T in /proc/PID/stat, after the name in brackets.
func (r *relay) waitStopped() {
	r.t.Helper()
	testenv.Until(r.t, patience, func(context.Context) error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.PID()))
		if err != nil {
			return err
		}
		if _, state, found := bytes.Cut(stat, []byte(") ")); !found || state[0] != 'T' {
			return errors.New("the relay is not stopped")
		}
		return nil
	})
}
