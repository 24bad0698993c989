package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// Latency is how long committed rows took to a consumer at one rate.
type Latency struct {
	Rate   int `json:"rate"`
	Events int `json:"events"`
	// Committed is the time from the moment at which the writer had the answer to its COMMIT, Commit from the moment at
	// which it sent it (PostgreSQL's flush to disk included).
	Committed Quantiles `json:"from_committed"`
	Commit    Quantiles `json:"from_commit_sent"`
}

// Quantiles of times in milliseconds.
type Quantiles struct {
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p99_9_ms"`
	Max  float64 `json:"max_ms"`
}

const (
	// writers share the rate, so that one slow commit does not hold up the others.
	writers = 4
	// warmUp is how many events go before those that count.
	warmUp = 50
)

// Latency measures the way from commit to consumer at each rate: synchronous commits, and a consumer that asks the
// broker without a pause.
func (l *Lab) Latency(ctx context.Context) ([]Latency, error) {
	slot, err := l.newSlot(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.createTopic(ctx, topicOf(slot)); err != nil {
		return nil, err
	}
	relay, err := l.startRelay(ctx, slot, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = relay.Signal(syscall.SIGKILL) }()
	var all []Latency
	for i, rate := range l.opts.Rates {
		got, err := l.latencyAt(ctx, topicOf(slot), rate, i*latencyIDs)
		if err != nil {
			return all, fmt.Errorf("latency at %d events/s: %w", rate, err)
		}
		l.say("%d events/s: p50 %.2f ms, p99 %.2f ms from the answer to COMMIT", rate, got.Committed.P50, got.Committed.P99)
		all = append(all, got)
	}
	if err := relay.Stop(ctx, syscall.SIGTERM); err != nil {
		return all, err
	}
	return all, errors.Join(l.dropSlot(ctx, slot), l.deleteTopic(ctx, topicOf(slot)), l.clear(ctx))
}

// latencyIDs keeps the numbers of the events of different rates apart.
const latencyIDs = 100_000_000

// startRelay starts "cdc-relay run" and waits until it streams.
func (l *Lab) startRelay(ctx context.Context, slot string, more map[string]any) (*relayChild, error) {
	port, err := localstack.ReservePort()
	if err != nil {
		return nil, err
	}
	defer port.Release()
	config, err := l.writeConfig(slot, port.Addr(), more)
	if err != nil {
		return nil, err
	}
	c, err := start(l.relay, "run", "--config", config)
	if err != nil {
		return nil, err
	}
	for {
		s, err := l.slot(ctx, slot)
		switch {
		case err != nil:
			return nil, err
		case s.pid != 0:
			return &relayChild{child: c, http: port.Addr()}, nil
		case !c.Running():
			return nil, c.failure()
		}
		if err := pause(ctx, watchInterval); err != nil {
			return nil, errors.Join(err, c.Signal(syscall.SIGKILL))
		}
	}
}

// event is what is known of one event, by its number.
type event struct{ sent, committed, seen time.Time }

func (l *Lab) latencyAt(ctx context.Context, topic string, rate, base int) (Latency, error) {
	count := warmUp + int(l.opts.Duration.Seconds()*float64(rate))
	events := make([]event, count)
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(count/rate+30)*time.Second, errors.New("not every event has come"))
	defer cancel()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(l.kafka.Addrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMinBytes(1), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return Latency{}, err
	}
	defer consumer.Close()
	// Each goroutine writes other fields: writers every writers-th event, the consumer what it sees.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return consume(ctx, consumer, events, base) })
	began := time.Now().Add(500 * time.Millisecond)
	for w := range writers {
		group.Go(func() error { return l.write(ctx, events, base, w, began, time.Second/time.Duration(rate)) })
	}
	if err := group.Wait(); err != nil {
		return Latency{}, err
	}
	events = events[warmUp:]
	return Latency{
		Rate: rate, Events: len(events),
		Committed: quantiles(events, func(e event) time.Duration { return e.seen.Sub(e.committed) }),
		Commit:    quantiles(events, func(e event) time.Duration { return e.seen.Sub(e.sent) }),
	}, nil
}

// write commits every writers-th event at its time, whatever became of the one before.
func (l *Lab) write(ctx context.Context, events []event, base, first int, began time.Time, gap time.Duration) error {
	conn, err := pgx.Connect(ctx, l.pg.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	const insert = "INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', $1, 'OrderPlaced', bench_payload($2, 0))"
	for i := first; i < len(events); i += writers {
		if err := pause(ctx, time.Until(began.Add(time.Duration(i)*gap))); err != nil {
			return err
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, insert, strconv.Itoa(i%1000), base+i); err != nil {
			return err
		}
		events[i].sent = time.Now()
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		events[i].committed = time.Now()
	}
	return nil
}

// consume notes when each event is seen, until all are.
func consume(ctx context.Context, consumer *kgo.Client, events []event, base int) error {
	for left := len(events); left > 0; {
		fetches := consumer.PollFetches(ctx)
		now := time.Now()
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("%d events are missing: %w", left, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if n, ok := numberOf(r.Value); ok && n >= base && n-base < len(events) && events[n-base].seen.IsZero() {
				events[n-base].seen = now
				left--
			}
		})
	}
	return nil
}

// numberOf finds the number of an event; jsonb puts the shortest key first.
func numberOf(payload []byte) (int, bool) {
	rest, ok := bytes.CutPrefix(payload, []byte(`{"n": `))
	digits, _, found := bytes.Cut(rest, []byte(","))
	n, err := strconv.Atoi(string(digits))
	return n, ok && found && err == nil
}

func quantiles(events []event, took func(event) time.Duration) Quantiles {
	sorted := make([]time.Duration, len(events))
	for i, e := range events {
		sorted[i] = took(e)
	}
	slices.Sort(sorted)
	ms := func(q float64) float64 { return float64(quantile(sorted, q).Microseconds()) / 1000 }
	return Quantiles{P50: ms(0.5), P99: ms(0.99), P999: ms(0.999), Max: ms(1)}
}
