package fencing_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// zombie starts a relay that publishes four rows, and stops it while the request with the next two is on its way.
func (s *site) zombie(topic string) *relay {
	s.t.Helper()
	p := shared.Proxy()
	old := s.start("", testenv.Settings{"kafka.brokers": []string{p.Addr()}})
	old.is("leader")
	s.insert(3)
	s.Consume(topic, 3, patience)
	s.t.Cleanup(p.Heal)
	first := p.StallAt(proxy.ToServer, position.Header) // only requests with rows have that
	s.insert(1)
	s.wait(first)
	s.insert(2) // These gather behind it to be one request, which no single transaction is sure to be.
	old.waitFor("/metrics", "cdc_relay_in_flight_messages 3")
	s.wait(p.StallAt(proxy.ToServer, position.Header))
	old.Signal(syscall.SIGSTOP)
	old.waitStopped()
	return old
}

// wait waits until the proxy holds what it was told to.
func (s *site) wait(sprung <-chan struct{}) {
	s.t.Helper()
	select {
	case <-sprung:
	case <-time.After(patience):
		s.t.Fatal("the relay has sent no row")
	}
}

// A request that arrives after the successor's first batch is refused, and so is whatever the old relay still tries.
func TestZombieIsRefused(t *testing.T) {
	s := newSite(t)
	topic := s.CreateTopic("order", 1)
	old := s.zombie(topic)
	next := s.start("", nil)
	next.is("leader")
	s.Consume(topic, 6, patience)
	shared.Proxy().Heal()
	old.Signal(syscall.SIGCONT)
	old.waitFor("/metrics", `reason="invalid_producer_epoch"`)
	old.is("standby")
	s.insert(3)
	s.want(topic, scene.Counted(1, 9)...)
	next.wantMetric("duplicates_detected_total", 0)
	if strings.Contains(next.Output(), "knew nothing of kafka.transactional_id") {
		t.Error("the successor says that it fences nobody")
	}
	// The old one leads again: the epoch goes on rising.
	s.Stop(next.Relay)
	old.is("leader")
	s.insert(3)
	s.want(topic, scene.Counted(1, 12)...)
}

// A request that arrives between the successor's reading and its first batch is accepted. The offset of that batch, which
// is one row, gives it away: the row comes twice, in order, and is counted.
func TestZombieSlipsIn(t *testing.T) {
	s := newSite(t)
	topic := s.CreateTopic("order", 1)
	old := s.zombie(topic)
	// It must keep the slot while it is stopped.
	next := s.start("scanned:1:stop", testenv.Settings{"postgres.wal_sender_timeout": "60s"})
	next.waitStopped()
	s.want(topic, scene.Counted(1, 4)...)
	shared.Proxy().Heal()
	s.Consume(topic, 6, patience)
	next.Signal(syscall.SIGCONT)
	s.Consume(topic, 7, patience)
	next.is("leader")
	s.insert(3)
	want := slices.Concat(scene.Counted(1, 6), scene.Counted(5, 5), scene.Counted(7, 9))
	s.want(topic, want...)
	next.wantMetric("duplicates_detected_total", 1)
	old.Signal(syscall.SIGCONT)
	old.is("standby")
	s.want(topic, want...)
}

// A relay that is stopped before it notes an acknowledgement has published all the same: nothing comes twice.
func TestZombieBeforeItsAcknowledgement(t *testing.T) {
	s := newSite(t)
	topic := s.CreateTopic("order", 1)
	old := s.start("produced:2:stop", nil)
	old.is("leader")
	s.insert(1)
	s.Consume(topic, 1, patience)
	s.insert(3)
	old.waitStopped()
	s.insert(3)
	next := s.start("", nil)
	next.is("leader")
	s.Consume(topic, 7, patience)
	old.Signal(syscall.SIGCONT)
	old.is("standby")
	s.insert(3)
	s.want(topic, scene.Counted(1, 10)...)
	next.wantMetric("resume_lanes_total", 1)
	next.wantMetric("duplicates_detected_total", 0)
}
