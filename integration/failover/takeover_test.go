package failover_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// senderTimeout is the wal_sender_timeout of the connections in TestTakeover.
const senderTimeout = 2 * time.Second

// instance is one of two relays of a slot, with a way of its own to the server.
type instance struct {
	*testenv.Relay
	proxy *proxy.Proxy
}

func (s *site) newInstance() *instance {
	s.t.Helper()
	p, err := proxy.New(s.primary.Addr)
	s.must(err)
	s.t.Cleanup(func() { _ = p.Close() })
	i := &instance{proxy: p}
	s.restart(i)
	return i
}

func (s *site) restart(i *instance) {
	s.t.Helper()
	u, err := url.Parse(s.URL)
	s.must(err)
	u.Host = i.proxy.Addr()
	i.Relay = s.StartRelay(testenv.RelayOptions{
		Plain: true, // the time that it takes is measured
		Settings: testenv.Settings{
			"postgres.url": u.String(), "postgres.wal_sender_timeout": senderTimeout.String(), "shutdown_timeout": "5s",
		},
	})
}

// role waits until the instance is ready in a role.
func (i *instance) role(t *testing.T, role string, limit time.Duration) {
	t.Helper()
	testenv.Until(t, limit, func(ctx context.Context) error {
		status, text, err := i.Get(ctx, "/readyz?verbose")
		if err == nil && (status != 200 || !strings.Contains(text, "ok: "+role)) {
			err = fmt.Errorf("/readyz answers %d %q, want %s", status, text, role)
		}
		return err
	})
}

// death is a way for a leader to be gone, and what brings the instance back as a standby.
type death struct {
	name   string
	rounds int
	limit  time.Duration
	die    func(i *instance)
	revive func(s *site, i *instance)
}

var deaths = []death{
	{
		"SIGTERM", 3, time.Second,
		func(i *instance) { i.Signal(syscall.SIGTERM) },
		func(s *site, i *instance) {
			if code := i.Wait(patience); code != 0 {
				s.t.Errorf("the relay exits with %d after SIGTERM, want 0", code)
			}
			s.restart(i)
		},
	},
	{"SIGKILL", 3, 3 * time.Second, func(i *instance) { i.Signal(syscall.SIGKILL) }, func(s *site, i *instance) { s.restart(i) }},
	{
		"stopped", 1, senderTimeout + 3*time.Second,
		func(i *instance) { i.Signal(syscall.SIGSTOP) },
		func(_ *site, i *instance) { i.Signal(syscall.SIGCONT) },
	},
	{
		"black hole", 1, senderTimeout + 3*time.Second,
		func(i *instance) { i.proxy.Stall(proxy.Both) },
		func(_ *site, i *instance) { i.proxy.Heal() },
	},
}

// A second relay waits in silence, ready as the standby, and takes over in time however the leader goes. The leader that
// comes back is the next standby, and nothing is lost or out of order.
func TestTakeover(t *testing.T) { // Not in parallel with others: it takes times.
	s := newSite(t, testenv.Major(), nil)
	end := s.load()
	leader := s.newInstance()
	leader.role(t, "leader", patience)
	standby := s.newInstance()
	for _, d := range deaths {
		var took []time.Duration
		standby.role(t, "standby", patience)
		s.waitsInSilence(time.Second)
		for range d.rounds {
			standby.role(t, "standby", patience)
			began := time.Now()
			d.die(leader)
			standby.role(t, "leader", patience)
			took = append(took, time.Since(began))
			d.revive(s, leader)
			leader, standby = standby, leader
		}
		slices.Sort(took)
		longest := took[len(took)-1].Round(time.Millisecond)
		t.Logf("%s: takeover p50 %v, max %v", d.name, took[(len(took)-1)/2].Round(time.Millisecond), longest)
		if longest >= d.limit {
			t.Errorf("%s: takeover took %v, want less than %v", d.name, longest, d.limit)
		}
	}
	standby.role(t, "standby", patience)
	end()
	s.judge().noPhantoms(t)
	for _, i := range []*instance{standby, leader} {
		if code := i.Stop(patience); code != 0 {
			t.Errorf("the relay exits with %d after SIGTERM, want 0", code)
		}
	}
}

// waitsInSilence fails the test when the server logs an error while a standby waits.
func (s *site) waitsInSilence(d time.Duration) {
	s.t.Helper()
	before := s.serverLog()
	testenv.Pass(s.t, d)
	for line := range strings.Lines(strings.TrimPrefix(s.serverLog(), before)) {
		for _, severity := range []string{"ERROR:", "FATAL:", "PANIC:"} {
			if strings.Contains(line, severity) {
				s.t.Errorf("the server logs, while a standby waits: %s", line)
			}
		}
	}
}

func (s *site) serverLog() string {
	s.t.Helper()
	text, err := os.ReadFile(s.primary.LogPath())
	s.must(err)
	return string(text)
}
