package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Many dead letters are replayed, at the pace that is the command's own, while the application writes on. Every one is
// published with its message id, and who waits for ordinary events hardly notices.
func TestReplayUnderLoad(t *testing.T) {
	l := newLab(t, plan{
		brokers: 1, repeats: checker.LateRepeats, poison: 3, maxRows: 10, rate: 1000,
		settings: testenv.Settings{"breaker.share": 1},
	})
	r := l.start(never, l.direct())
	const rows = `SELECT count(*) FROM public.outbox WHERE aggregatetype LIKE '%?'`
	l.waitForCount(*replays, rows)
	l.check.Poison(0)
	l.waitForCount(*replays, `SELECT count(*) FROM public.cdc_relay_dead_letter WHERE reason = 'invalid_topic'`)
	l.catchesUp()
	m := l.measure()
	pause(t.Context(), min(20*time.Second, max(5*time.Second, time.Duration(*replays)*time.Second/500)))
	quiet := m.take()

	began, asked := time.Now(), 0
	for asked < *replays {
		// Half a minute each.
		answer := l.replay(min(5000, *replays-asked), true)
		if answer.Replayed == 0 {
			t.Fatalf("%d dead letters could be replayed, want %d", asked, *replays)
		}
		asked += answer.Replayed
	}
	took := time.Since(began)
	busy := m.take()
	l.say("ordinary events alone:        %v", quiet)
	l.say("beside %.0f replays a second: %v", float64(asked)/took.Seconds(), busy)
	report := l.judge()
	if report.Replayed != asked {
		t.Errorf("%d replays are on the topic, want %d", report.Replayed, asked)
	}
	if long := *replays >= 10_000; long && (busy.median() > 2*quiet.median()+2*time.Millisecond || busy.rank(99) > 2*quiet.rank(99)+10*time.Millisecond) {
		t.Error("the latency is more than twice as long beside the replays")
	}
	if code := r.Stop(patience); code != 0 {
		t.Errorf("the relay exits with %d after SIGTERM, want 0", code)
	}
}

// waitForCount waits until a query counts so many.
func (l *lab) waitForCount(least int, sql string) {
	l.t.Helper()
	testenv.Until(l.t, 10*patience, func(ctx context.Context) error {
		var n int
		err := query(ctx, l.env.URL, sql, &n)
		if err == nil && n < least {
			err = fmt.Errorf("%d, want %d: %s", n, least, sql)
		}
		return errors.Join(err, testenv.Pause(ctx, 200*time.Millisecond))
	})
}

// catchesUp waits until the slot is close behind the workload.
func (l *lab) catchesUp() {
	l.t.Helper()
	const near = 500_000 // bytes, which the workload writes in about a second
	testenv.Until(l.t, 5*patience, func(ctx context.Context) error {
		var left int
		err := query(ctx, l.env.URL, `SELECT (pg_current_wal_insert_lsn() - confirmed_flush_lsn)::bigint FROM pg_replication_slots
			WHERE slot_name = $1`, &left, l.env.Slot)
		if err == nil && left > near {
			err = fmt.Errorf("%d bytes are not confirmed", left)
		}
		return err
	})
}

// meter measures how long events take from their commit to a consumer.
type meter struct {
	mu   sync.Mutex
	seen latencies
}

// measure begins to read the topics at their ends.
func (l *lab) measure() *meter {
	l.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(l.env.Brokers...), kgo.ConsumeTopics(l.check.Topics()...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		l.t.Fatal(err)
	}
	m := &meter{}
	ctx, cancel := context.WithCancel(l.t.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			m.add(client.PollFetches(ctx), time.Now())
		}
	})
	l.t.Cleanup(func() {
		cancel()
		reading.Wait()
		client.Close()
	})
	return m
}

// add takes the records but those of replays. The time of a record is that of its commit, in milliseconds.
func (m *meter) add(fetches kgo.Fetches, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fetches.EachRecord(func(r *kgo.Record) {
		if !slices.ContainsFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == "cdc-relay-replay" }) {
			m.seen = append(m.seen, now.Sub(r.Timestamp))
		}
	})
}

// take returns what was measured since the last time.
func (m *meter) take() latencies {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := m.seen
	m.seen = nil
	slices.Sort(seen)
	return seen
}

// latencies in ascending order.
type latencies []time.Duration

func (l latencies) rank(percent int) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[(len(l)-1)*percent/100]
}

func (l latencies) median() time.Duration { return l.rank(50) }

func (l latencies) String() string {
	return fmt.Sprintf("%d events, p50 %d ms, p90 %d ms, p99 %d ms, max %d ms",
		len(l), l.median().Milliseconds(), l.rank(90).Milliseconds(), l.rank(99).Milliseconds(), l.rank(100).Milliseconds())
}
