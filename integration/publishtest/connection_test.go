package publishtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// What goes through the one proxy goes one after the other.
func TestThroughProxy(t *testing.T) {
	t.Parallel()
	t.Run("codecs while the broker is slow", func(t *testing.T) { allCodecs(t, newScene(t), shared.Proxy()) })
	t.Run("answers lost", func(t *testing.T) { answersLost(t, newScene(t), shared.Proxy()) })
}

// A batch that was appended and whose answer is lost is sent again and not appended again.
func answersLost(t *testing.T, s *scene.Scene, p *proxy.Proxy) {
	topic := s.CreateTopic("order", 1)
	r := s.Start(testenv.Settings{"kafka.brokers": p.Addr()})
	const rounds, each = 8, 25
	for round := range rounds {
		s.Settled(s.Insert("order", "k", scene.Counted(round*each*2+1, round*each*2+each)...))
		p.Stall(proxy.ToClient)
		within := s.Insert("order", "k", scene.Counted(round*each*2+each+1, (round+1)*each*2)...)
		testenv.Until(t, patience, func(context.Context) error {
			if n := s.Count(topic); n <= round*each*2+each {
				return fmt.Errorf("%d records: nothing new is appended", n)
			}
			return nil
		})
		s.Held(within)
		p.Reset()
		p.Heal()
	}
	const rows = rounds * each * 2
	got := s.Consume(topic, rows, patience)
	if !slices.Equal(scene.Values(got), scene.Counted(1, rows)) || got[rows-1].Offset != rows-1 {
		t.Errorf("%d records, the last at offset %d, for %d rows: %q", len(got), got[len(got)-1].Offset, rows, scene.Values(got))
	}
	if lost := scene.Metric(t, r, "cdc_relay_publish_failures_total"); lost < rounds {
		t.Errorf("%v attempts without an answer, want at least %d", lost, rounds)
	}
	r.WaitReady(patience)
	s.Stop(r)
}

// The broker has closed the connection that nothing was sent on for a while: the next row does not notice.
func TestIdleConnection(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	topic := s.CreateTopic("order", 1)
	r := s.Start(nil)
	for n := range 3 {
		until := time.Now().Add(idleLimit + time.Second)
		s.Settled(s.Insert("order", "k", strconv.Itoa(n)))
		testenv.Until(t, patience, func(context.Context) error {
			if left := time.Until(until); left > 0 {
				return fmt.Errorf("%v to wait", left)
			}
			return nil
		})
	}
	const latency = "cdc_relay_commit_to_ack_seconds_sum"
	before := scene.Metric(t, r, latency)
	s.Settled(s.Insert("order", "k", "last"))
	if took := scene.Metric(t, r, latency) - before; took > 3 {
		t.Errorf("the row after the pause took %v s from its commit to its acknowledgement", took)
	}
	if n := s.Count(topic); n != 4 {
		t.Errorf("%d records for 4 rows", n)
	}
	t.Logf("%v s, %v attempts failed", scene.Metric(t, r, latency)-before, scene.Metric(t, r, "cdc_relay_publish_failures_total"))
	if status, text, err := r.Get(t.Context(), "/readyz"); status != 200 || strings.Contains(r.Output(), `"level":"WARN"`) {
		t.Errorf("/readyz answers %d %s (%v)", status, text, err)
	}
	s.Stop(r)
}

// A bootstrap address that refuses, or takes a connection and never answers, costs no more than a moment when there is
// another one.
func TestDeadBootstrapAddress(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	topic := s.CreateTopic("order", 1)
	port, err := localstack.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	frozen, err := proxy.New(func() string { return s.Brokers[0] })
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	frozen.Stall(proxy.Both)
	// One that takes connections costs a time-out of a few seconds whenever it is asked first.
	for n, dead := range []struct {
		address string
		limit   time.Duration
	}{{port.Addr(), 15 * time.Second}, {frozen.Addr(), patience}} {
		began := time.Now()
		r := s.Start(testenv.Settings{"kafka.brokers": []string{dead.address, s.Brokers[0]}})
		s.Insert("order", "k", "1")
		s.Consume(topic, n+1, patience)
		t.Logf("with %s: %v to the first record", dead.address, time.Since(began))
		if took := time.Since(began); took > dead.limit {
			t.Errorf("with dead address %d: %v to the first record", n, took)
		}
		s.Stop(r)
	}
}
