// Package fencing_test runs the cdc-relay binary with kafka.transactional_id on real Kafka: an earlier relay that writes
// on is kept out, whatever it has on its way.
package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	patience = 90 * time.Second // a halted relay tries again every 30 seconds
	user     = "relay"
	password = "s3cret-password"
	// senderTimeout is how long a relay that is stopped keeps the slot.
	senderTimeout = 2 * time.Second
)

// shared is one broker for all tests but that of expiry, behind a proxy. It is a package variable because testing offers
// no other way from TestMain to a test.
var shared testenv.Cluster

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, shared.Close)) }

// site is one outbox with the relays of its slot, which share a transactional id.
type site struct {
	*scene.Scene
	t    *testing.T
	id   string
	rows int // inserted
}

func newSite(t *testing.T) *site {
	t.Helper()
	shared.Start(t, localstack.KafkaConfig{
		Users: map[string]string{user: password},
		Properties: map[string]string{
			// Everybody may do everything until a test makes a rule for one resource.
			"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":                    "User:ANONYMOUS",
			"allow.everyone.if.no.acl.found": "true",
		},
	})
	return newSiteOn(t, shared.Kafka)
}

func newSiteOn(t *testing.T, kafka *localstack.Kafka) *site {
	t.Helper()
	s := scene.New(t, kafka.Addrs())
	return &site{Scene: s, t: t, id: s.Slot}
}

// relay is one process.
type relay struct {
	*testenv.Relay
	t *testing.T
}

// start runs a relay of the site. crashAt is a point of package internal/crash, or "".
func (s *site) start(crashAt string, more testenv.Settings) *relay {
	s.t.Helper()
	settings := testenv.Settings{"kafka.transactional_id": s.id, "postgres.wal_sender_timeout": senderTimeout.String()}
	maps.Copy(settings, more)
	return &relay{s.StartRelay(testenv.RelayOptions{Settings: settings, CrashAt: crashAt, Args: []string{"--init"}}), s.t}
}

// insert commits the next n rows, numbered from 1, all of one key, in one transaction.
func (s *site) insert(n int) {
	s.t.Helper()
	s.Insert("order", "key", scene.Counted(s.rows+1, s.rows+n)...)
	s.rows += n
}

// want waits for the records of a topic, and compares their values.
func (s *site) want(topic string, want ...string) {
	s.t.Helper()
	if got := scene.Values(s.Consume(topic, len(want), patience)); !slices.Equal(got, want) {
		s.t.Errorf("got %q, want %q", got, want)
	}
}

// is waits until the relay is ready in a role.
func (r *relay) is(role string) {
	r.t.Helper()
	r.waitFor("/readyz?verbose", "ok: "+role)
}

// waitFor waits until an endpoint's answer has a text.
func (r *relay) waitFor(path, text string) {
	r.t.Helper()
	testenv.Until(r.t, patience, func(ctx context.Context) error {
		_, body, err := r.Get(ctx, path)
		if err == nil && !strings.Contains(body, text) {
			err = fmt.Errorf("%s has no %q: %s", path, text, body[:min(len(body), 500)])
		}
		return err
	})
}

// wantMetric compares the sum of a metric's samples.
func (r *relay) wantMetric(name string, want float64) {
	r.t.Helper()
	if got := scene.Metric(r.t, r.Relay, "cdc_relay_"+name); got != want {
		r.t.Errorf("%s = %v, want %v", name, got, want)
	}
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
