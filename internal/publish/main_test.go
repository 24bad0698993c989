package publish_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a running publisher over a model broker, inside a synctest bubble.
type rig struct {
	t       *testing.T
	m       *modelBroker
	cfg     publish.Config
	p       *publish.Publisher
	ctx     context.Context
	kill    func()
	alive   atomic.Bool
	log     lockedBuffer
	metrics *prometheus.Registry
	session publish.Session
	n       int    // rows made
	seq     uint64 // rows of the session
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// run starts a publisher with a session and runs the test in a bubble.
func run(t *testing.T, cfg publish.Config, m *modelBroker, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, m: m, cfg: cfg}
		r.alive.Store(true)
		r.session = publish.Session{
			SystemID: "s", Timeline: 3, History: 0xa1, Fingerprint: 0xf3,
			WALEnd: 1 << 40, Alive: r.alive.Load,
		}
		r.launch()
		defer func() { r.kill() }()
		r.begin()
		test(r)
		m.verify()
		for _, p := range m.problems {
			t.Error(p)
		}
	})
}

// launch starts a process.
func (r *rig) launch() {
	r.t.Helper()
	r.metrics = prometheus.NewRegistry()
	p, err := publish.New(r.cfg, r.m, slog.New(slog.NewTextHandler(&r.log, nil)), r.metrics)
	if err != nil {
		r.t.Fatal(err)
	}
	r.p = p
	ctx, cancel := context.WithCancel(r.t.Context())
	r.ctx = ctx
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	r.kill = func() { cancel(); <-done }
}

// restart kills the process and starts another, whose session begins at row from and
// finds every row made so far in the server's log.
func (r *rig) restart(from int) {
	r.t.Helper()
	r.kill()
	r.launch()
	r.session.Start, r.session.WALEnd = commitAt(from), commitAt(r.n)
	r.begin()
}

// reconnect begins a session of the same process in the same way.
func (r *rig) reconnect(from int) {
	r.t.Helper()
	r.p.End()
	r.session.Start, r.session.WALEnd = commitAt(from), commitAt(r.n)
	r.begin()
}

// commitAt is the commit LSN of row i of the stream.
func commitAt(i int) pglogrepl.LSN { return pglogrepl.LSN(1000 + i) }

// begin starts a new session, numbered from 1.
func (r *rig) begin() {
	r.p.Begin(r.session)
	r.seq = 0
}

// record makes row i of the stream; its position depends on i only.
func (r *rig) record(i int, topic, key string) *publish.Record {
	rec := &publish.Record{
		Topic: topic, Value: fmt.Appendf(nil, "%d", i), ID: fmt.Appendf(nil, "id-%d", i),
		Time:     time.Now(),
		Position: position.Position{Commit: commitAt(i), LSN: 9, Kind: position.Row},
	}
	if key != "" {
		rec.Key = []byte(key)
	}
	return rec
}

func (r *rig) publish(rec *publish.Record) {
	r.t.Helper()
	r.seq++
	rec.Seq = r.seq
	if err := r.p.Publish(r.ctx, rec); err != nil {
		r.t.Fatalf("publish: %v", err)
	}
}

// put publishes the next n rows of the stream to topic t.
func (r *rig) put(n int) {
	r.t.Helper()
	for range n {
		r.publish(r.record(r.n, "t", "key"))
		r.n++
	}
}

// putBatch publishes the next n rows as one batch, and returns when it was sent.
func (r *rig) putBatch(n int) {
	r.t.Helper()
	r.alive.Store(false)
	r.put(n)
	synctest.Wait()
	r.alive.Store(true)
	before := r.requests()
	for r.requests() == before {
		r.settle(time.Millisecond)
	}
}

// replay publishes rows from to r.n again, as a server does in a new session.
func (r *rig) replay(from int) {
	r.t.Helper()
	for i := from; i < r.n; i++ {
		r.publish(r.record(i, "t", "key"))
	}
}

func (r *rig) drain(limit time.Duration) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, limit)
	defer cancel()
	if err := r.p.Drained(ctx); err != nil {
		r.t.Fatalf("not drained within %s: %v", limit, r.p.Snapshot().Problems())
	}
}

// settle waits for d and for everything that can go on to have done so.
func (r *rig) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// wantHistoryError waits for the publisher to give up the history, for this reason.
func (r *rig) wantHistoryError(reason string) {
	r.t.Helper()
	r.settle(time.Minute)
	select {
	case err := <-r.p.Reset():
		var h *publish.HistoryError
		if !errors.As(err, &h) || !strings.Contains(h.Reason, reason) {
			r.t.Errorf("Reset = %v, want a *HistoryError: %s", err, reason)
		}
	default:
		r.t.Errorf("the history is not given up: %s", reason)
	}
}

func (r *rig) oldest() uint64 {
	seq, _ := r.p.Oldest()
	return seq
}

// values are what a partition holds, in order.
func (r *rig) values(topic string, partition int) string {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	var out []string
	if partition < len(r.m.topics[topic]) {
		for _, rec := range r.m.topics[topic][partition].log {
			out = append(out, rec.value)
		}
	}
	return strings.Join(out, " ")
}

func (r *rig) wantValues(topic string, partition int, want string) {
	r.t.Helper()
	if got := r.values(topic, partition); got != want {
		r.t.Errorf("%s[%d] holds %q, want %q", topic, partition, got, want)
	}
}

func (r *rig) requests() int {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.m.produced
}

func (r *rig) logged(text string) int { return strings.Count(r.log.String(), text) }

// metric sums the samples of a counter or gauge whose labels contain all of labels.
func (r *rig) metric(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			text := m.String()
			match := true
			for _, l := range labels {
				match = match && strings.Contains(text, `"`+l+`"`)
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
