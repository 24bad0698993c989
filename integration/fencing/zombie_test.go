package fencing_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// zombie starts a relay that publishes three rows, and stops it while the request with the next three is on its way.
func (s *scene) zombie(topic string) *relay {
	s.t.Helper()
	old := s.start("", proxied())
	old.is("leader")
	s.insert(3)
	s.Consume(topic, 3, patience)
	shared.proxy.Stall(proxy.ToServer)
	s.t.Cleanup(shared.proxy.Heal)
	s.insert(3)
	old.waitMetric("in_flight_messages", "", 3)
	old.Signal(syscall.SIGSTOP)
	old.waitStopped()
	return old
}

// A request that arrives after the successor's first batch is refused, and so is whatever the old relay still tries.
func TestZombieIsRefused(t *testing.T) {
	s := newScene(t)
	topic := s.CreateTopic("order", 1)
	old := s.zombie(topic)
	next := s.start("", nil)
	next.is("leader")
	s.Consume(topic, 6, patience)
	shared.proxy.Heal()
	old.Signal(syscall.SIGCONT)
	old.waitMetric("publish_failures_total", `reason="invalid_producer_epoch"`, 1)
	old.is("standby")
	s.insert(3)
	if got := s.values(topic, 9); !slices.Equal(got, numbers(1, 9)) {
		t.Errorf("got %q, want 1 to 9", got)
	}
	next.wantMetric("duplicates_detected_total", 0)
	if strings.Contains(next.Output(), "knew nothing of kafka.transactional_id") {
		t.Error("the successor says that it fences nobody")
	}
	// The old one leads again: the epoch goes on rising.
	if code := next.Stop(patience); code != 0 {
		t.Errorf("the successor exits with %d", code)
	}
	old.is("leader")
	s.insert(3)
	if got := s.values(topic, 12); !slices.Equal(got, numbers(1, 12)) {
		t.Errorf("got %q, want 1 to 12", got)
	}
}

// A request that arrives between the successor's reading and its first batch is accepted. The offset of that batch, which
// is one row, gives it away: the row comes twice, in order, and is counted.
func TestZombieSlipsIn(t *testing.T) {
	s := newScene(t)
	topic := s.CreateTopic("order", 1)
	old := s.zombie(topic)
	// It must keep the slot while it is stopped.
	next := s.start("scanned:1:stop", testenv.Settings{"postgres.wal_sender_timeout": "60s"})
	next.waitStopped()
	if n := len(s.values(topic, 3)); n != 3 {
		t.Fatalf("%d records before the request arrives, want 3", n)
	}
	shared.proxy.Heal()
	s.Consume(topic, 6, patience)
	next.Signal(syscall.SIGCONT)
	s.Consume(topic, 7, patience)
	next.is("leader")
	s.insert(3)
	want := append(append(numbers(1, 6), "4"), numbers(7, 9)...)
	if got := s.values(topic, len(want)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	next.wantMetric("duplicates_detected_total", 1)
	old.Signal(syscall.SIGCONT)
	old.is("standby")
	if got := s.values(topic, len(want)); !slices.Equal(got, want) {
		t.Errorf("after the old relay was woken: got %q, want %q", got, want)
	}
}

// A relay that is stopped before it notes an acknowledgement has published all the same: nothing comes twice.
func TestZombieBeforeItsAcknowledgement(t *testing.T) {
	s := newScene(t)
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
	if got := s.values(topic, 10); !slices.Equal(got, numbers(1, 10)) {
		t.Errorf("got %q, want 1 to 10", got)
	}
	next.wantMetric("resume_lanes_total", 1)
	next.wantMetric("duplicates_detected_total", 0)
}
