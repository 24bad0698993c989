// Package outage_test takes things away from a relay under load: connections, servers, the relay itself. Its tests run
// one after another, since each does as it likes with the servers they share.
package outage_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const patience = 30 * time.Second

// load is a relay between a checker that writes and the same checker that judges.
type load struct {
	t     *testing.T
	env   *testenv.Env
	check *checker.Checker
	relay *testenv.Relay
	end   func() error // ends the writing
}

// newLoad sets everything up, starts a relay and begins to write.
func newLoad(t *testing.T, settings testenv.Settings, cfg checker.Config, opts ...testenv.Option) *load {
	t.Helper()
	env := testenv.New(t, opts...)
	env.CreateTopic("order", 4)
	if res := env.Run("init", "--config", env.WriteConfig(settings)); res.Code != 0 {
		t.Fatal(res.Stderr)
	}
	cfg.URL, cfg.Slot, cfg.Brokers, cfg.TopicPrefix = env.URL, env.Slot, env.Brokers, env.Prefix
	c, err := checker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, env: env, check: c}
	l.relay = l.start(settings)
	l.end = c.Begin(t.Context())
	return l
}

func (l *load) start(settings testenv.Settings) *testenv.Relay {
	l.t.Helper()
	// Without the race detector, which the other packages use: here many rows and restarts count.
	r := l.env.StartRelay(testenv.RelayOptions{Settings: settings, Plain: true})
	r.WaitReady(patience)
	return r
}

// judge ends the writing and returns the report, once nothing is missing or the time is over.
func (l *load) judge() *checker.Report {
	l.t.Helper()
	if err := l.end(); err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	report, err := l.check.Wait(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Log(report.String())
	if !report.OK() {
		l.t.Errorf("the checker finds faults: %s", report.String())
	}
	return &report
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, r *testenv.Relay, name string) string {
	t.Helper()
	_, body, err := r.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no metric %s", name)
	return ""
}
