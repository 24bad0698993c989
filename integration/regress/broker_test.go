package regress_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// frozen is a relay whose broker takes everything and answers nothing, while the database goes on.
type frozen struct {
	name    string
	acked   int // rows before
	rows    int // rows meanwhile
	padding int
	killed  bool // before the broker is back

	*stage
	topic          string
	relay          *testenv.Relay
	within, sender string
}

// shortTimeout is the wal_sender_timeout of relays that are kept from publishing for longer.
const shortTimeout = 3 * time.Second

// What comes while nothing can be acknowledged is not confirmed, whatever else the server has to say; it is not lost when
// the relay dies, and costs neither the replication connection nor repeats when it does not.
func TestFrozenBroker(t *testing.T) {
	t.Parallel()
	cases := []*frozen{
		{name: "nothing was acknowledged before", rows: 100, killed: true},
		{name: "one row was acknowledged before", acked: 1, rows: 100, killed: true},
		{name: "one row waits", acked: 10, rows: 1, killed: true},
		{name: "more rows than memory", acked: 1, rows: 20_000 * *scale, padding: 500},
	}
	p := viaProxy(t)
	for _, c := range cases {
		c.stage = newStage(t)
		c.topic = c.CreateTopic("order", 1)
		c.relay = c.Start(c.settings(p))
		if c.acked > 0 {
			c.Settled(c.insert(1, c.acked, 0))
		}
		c.sender = c.OfSlot("active_pid")
	}
	p.Stall(proxy.Both)
	for _, c := range cases {
		c.within = c.insert(c.acked+1, c.acked+c.rows, c.padding)
	}
	every(500*time.Millisecond, time.Duration(3**scale)*shortTimeout, func() {
		for _, c := range cases {
			c.noise()
		}
	})
	for _, c := range cases {
		c.Held(c.within)
		if c.killed {
			c.relay.Kill()
			c.Held(c.within)
		}
	}
	p.Reset() // What was written to the broker before does not arrive after all.
	p.Heal()
	for _, c := range cases {
		t.Run(c.name, c.judge)
	}
}

func (f *frozen) settings(p *proxy.Proxy) testenv.Settings {
	return testenv.Settings{
		"kafka.brokers": p.Addr(), "postgres.wal_sender_timeout": shortTimeout.String(), "limits.in_flight_bytes": "1MiB",
	}
}

func (f *frozen) judge(t *testing.T) {
	total := f.acked + f.rows
	if f.killed {
		f.relay = f.Start(f.settings(broker(t).Proxy()))
		f.firsts(f.topic, total)
		f.Settled(f.within)
		f.Stop(f.relay)
		return
	}
	f.relay.WaitReady(patience)
	if now := f.OfSlot("active_pid"); now != f.sender {
		t.Errorf("walsender %s became %s", f.sender, now)
	}
	f.Settled(f.insert(total+1, total+1, 0))
	f.once(f.topic, total+1)
	for _, line := range serverLog(t, f.sender) {
		t.Errorf("the server says of walsender %s: %s", f.sender, line)
	}
	f.Stop(f.relay)
}

// serverLog returns what a process of the shared server has said about time-outs.
func serverLog(t *testing.T, pid string) (lines []string) {
	t.Helper()
	server, err := testenv.Postgres(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(server.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "["+pid+"]") && strings.Contains(line, "timeout") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Brokers that are gone for longer than a client's retries usually last are waited for. Nothing is confirmed meanwhile,
// what is wrong can be read, and the rows go on without a restart.
func TestBrokerGone(t *testing.T) {
	t.Parallel()
	p := viaProxy(t)
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	r := s.Start(testenv.Settings{"kafka.brokers": p.Addr()})
	s.Settled(s.insert(1, 1, 0))
	p.Cut()
	const rows = 1000
	within := s.insert(2, rows, 0)
	gone := time.Now()
	says(t, r, 503, topic)
	lines := strings.Count(r.Output(), "\n")
	every(time.Second, time.Duration(8**scale)*time.Second-time.Since(gone), func() { s.Held(within) })
	says(t, r, 503, topic)
	if n := strings.Count(r.Output(), "\n") - lines; n > 2 {
		t.Errorf("%d lines for one outage:\n%s", n, r.Output())
	}
	before := s.OfSlot("active_pid")
	p.Heal()
	r.WaitReady(5 * time.Second)
	s.Settled(within)
	s.Settled(s.insert(rows+1, rows+1, 0))
	s.once(topic, rows+1)
	if now := s.OfSlot("active_pid"); now != before {
		t.Errorf("walsender %s became %s", before, now)
	}
	s.Stop(r)
}

// The rows of one key stay in order, and come once, while every batch may be the one whose connection breaks.
func TestConnectionsBreak(t *testing.T) {
	t.Parallel()
	p := viaProxy(t)
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	r := s.Start(testenv.Settings{"kafka.brokers": p.Addr(), "kafka.max_message_bytes": "1KiB"})
	s.Settled(s.insert(1, 1, 100)) // The partition has been read: from here on it is written to.
	rows := 1
	every(50*time.Millisecond, time.Duration(5**scale)*time.Second, func() {
		s.insert(rows+1, rows+20, 100)
		rows += 20
		p.Reset()
	})
	r.WaitReady(patience)
	s.Settled(s.insert(rows+1, rows+1, 0))
	s.once(topic, rows+1)
	failures := scene.Metric(t, r, "cdc_relay_publish_failures_total")
	t.Logf("%d rows, %v failed attempts", rows, failures)
	if failures < 5 {
		t.Errorf("only %v attempts failed", failures)
	}
	s.Stop(r)
}
