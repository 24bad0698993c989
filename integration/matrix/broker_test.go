package matrix_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// While the broker is down rows are committed as ever, nothing is confirmed, and the relay tries again at its own pace.
// Once it is back the backlog drains by itself. (That no attempt comes before its time is a test of the lane, with a
// clock of its own.)
func brokerDown(t *testing.T, st *stage) {
	p := newPlay(t, st)
	p.CreateTopic("order", 1)
	r := p.start(testenv.RelayOptions{})
	p.Settled(p.insert("0"))
	broker := st.Kafka.Brokers()[0]
	if err := broker.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = broker.Start(context.WithoutCancel(t.Context())) }) // for the rows that follow
	walsender := p.OfSlot("active_pid")
	want := scene.Counted(0, 20)
	var first, last string
	for _, value := range want[1:] {
		last = p.insert(value)
		if first == "" {
			first = last
		}
	}
	scene.Reason(t, r, "order")
	p.until(r, "cdc_relay_publish_failures_total", func(n float64) bool { return n >= 3 })
	p.Held(first)
	if status, _, err := r.Get(t.Context(), "/livez"); status != 200 {
		t.Errorf("/livez answers %d (%v)", status, err)
	}

	// What happens next.
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	p.Settled(last)
	t.Logf("the backlog is gone %v after the broker's start", time.Since(up).Round(time.Millisecond))
	r.WaitReady(patience)
	p.published(want...)
	if now := p.OfSlot("active_pid"); now != walsender {
		t.Errorf("walsender %s became %s: a stalled broker must not cost the replication connection", walsender, now)
	}
	p.Stop(r)
}

// A broker that is slower than the writers: the relay holds no more than it is allowed, and tells how far it is behind.
func slowBroker(t *testing.T, st *stage) {
	const (
		rows   = 6000
		budget = 1 << 20
		most   = 64 << 20 // that the process may ever have held
	)
	p := newPlay(t, st)
	p.CreateTopic("order", 1)
	settings := st.proxied()
	settings["limits.in_flight_bytes"] = "1MiB"
	r := p.start(testenv.RelayOptions{Settings: settings, Plain: true})
	p.Settled(p.insert("first"))
	st.Proxy().Limit(proxy.ToServer, 512<<10)
	t.Cleanup(st.Proxy().Heal)
	p.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT 'order', 'key', g || repeat('x', 1000) FROM generate_series(1, $1::int) g`, rows)
	var held, age float64
	testenv.Until(t, patience, func(context.Context) error {
		held = max(held, scene.Metric(t, r, "cdc_relay_in_flight_bytes"))
		age = scene.Metric(t, r, "cdc_relay_oldest_unacknowledged_seconds")
		if age < 2 {
			return fmt.Errorf("the oldest row is said to be %v seconds old", age)
		}
		return nil
	})
	p.until(r, "cdc_relay_slot_lag_bytes", func(lag float64) bool { return lag > 1<<20 })
	if n := p.Count(p.topic); n >= rows {
		t.Fatalf("%d rows are published: the broker was not slow", n)
	}

	// What happens next.
	st.Proxy().Heal()
	p.until(r, "cdc_relay_messages_published_total", is(rows+1))
	p.until(r, "cdc_relay_oldest_unacknowledged_seconds", is(0))
	if held > budget*5/4 {
		t.Errorf("%.0f bytes were in flight, with a limit of %d", held, budget)
	}
	peak := resident(t, r.PID())
	t.Logf("at most %.0f KiB in flight, the process held %d KiB; the oldest row was %.1f s old", held/1024, peak>>10, age)
	if peak > most {
		t.Errorf("the process held %d KiB, want at most %d", peak>>10, most>>10)
	}
	for i, record := range p.Consume(p.topic, rows+1, patience) {
		if i > 0 && !strings.HasPrefix(string(record.Value), fmt.Sprint(i, "x")) {
			t.Fatalf("record %d is row %.6s", i, record.Value)
		}
	}
	p.Stop(r)
}

// resident is the kernel's high-water mark of a process's memory, in bytes.
func resident(t *testing.T, pid int) (bytes int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(status), "VmHWM:")
	if _, err = fmt.Sscanf(rest, "%d kB", &bytes); err != nil || !found {
		t.Fatal(errors.New("the kernel does not tell the peak of memory"), err)
	}
	return bytes << 10
}
