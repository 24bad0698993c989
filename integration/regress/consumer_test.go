package regress_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/process"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// desk is the database of consumers.
type desk struct {
	*testenv.Env
	t    *testing.T
	pool *pgxpool.Pool
	log  *process.Output
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{Env: testenv.New(t, testenv.NoKafka()), t: t, log: &process.Output{}}
	consumer.Prepare(t, d.Conn())
	config, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 8
	if d.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.pool.Close)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("consumers printed:\n%s", process.Tail(d.log.String()))
		}
	})
	return d
}

// processor makes a consumer. Its handler writes the effect, unless another one is given.
func (d *desk) processor(cfg inbox.Config) *inbox.Processor {
	d.t.Helper()
	cfg.Pool, cfg.Logger = d.pool, slog.New(slog.NewTextHandler(d.log, nil))
	cfg.PollInterval, cfg.Backoff = 50*time.Millisecond, inbox.Backoff{Initial: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	if cfg.Handler == nil {
		cfg.Handler = write(cfg.Consumer)
	}
	p, err := inbox.New(cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	return p
}

func write(name string) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
		return consumer.Write(ctx, tx, consumer.Effect{Consumer: name, MessageID: m.ID, Key: string(m.Key)})
	}
}

// run runs the consumer's runner until stop is called.
func (d *desk) run(p *inbox.Processor) (stop func()) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			d.t.Errorf("the runner ends with %v", err)
		}
	})
	d.t.Cleanup(stop)
	return stop
}

func message(id, topic, key string) *inbox.Message {
	return &inbox.Message{ID: id, Topic: topic, Key: []byte(key), Value: []byte("{}")}
}

// deliver delivers a message and checks what becomes of it.
func (d *desk) deliver(p *inbox.Processor, m *inbox.Message, want inbox.Outcome) {
	d.t.Helper()
	if r := p.Process(d.t.Context(), m); r.Outcome != want {
		d.t.Fatalf("%s of %s: got %+v, want %v", m.ID, m.Topic, r, want)
	}
}

// becomes waits until a query reads as wanted.
func (d *desk) becomes(want, sql string, args ...any) {
	d.t.Helper()
	testenv.Until(d.t, patience, func(ctx context.Context) error {
		got, err := testenv.TextAt(ctx, d.URL, sql, args...)
		if err == nil && got != want {
			err = fmt.Errorf("%s: got %q, want %q", sql, got, want)
		}
		return err
	})
}

// reads checks that a query reads as wanted.
func (d *desk) reads(want, sql string, args ...any) {
	d.t.Helper()
	if got := d.Text(sql, args...); got != want {
		d.t.Errorf("%s: got %q, want %q", sql, got, want)
	}
}

const (
	effects     = `SELECT count(*) FROM public.effect`
	letterState = `SELECT string_agg(DISTINCT state || ' ' || reason || ' ' || deliveries, ', ') FROM public.cdc_relay_inbox_letter`
	replayAll   = `SELECT count(*) FROM public.cdc_inbox_replay((SELECT array_agg(id) FROM public.cdc_relay_inbox_letter))`
)

// What is remembered is remembered for as long as the consumer was told: a copy that comes later has its effect again,
// which is why retention must be longer than that of the topic. What is dead or parked stays, however old it is, and its
// replay has one effect.
func TestPrunedBeforeALateCopy(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var mended atomic.Bool
	p := d.processor(inbox.Config{
		Consumer: "shipping", MaxDeliveries: 1, Retention: time.Minute,
		Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			if m.ID == "dead" && !mended.Load() {
				return errors.New("no")
			}
			return write("shipping")(ctx, tx, m)
		},
	})
	d.deliver(p, message("old", "order", "a"), inbox.Processed)
	d.deliver(p, message("dead", "order", "b"), inbox.DeadLettered)
	d.deliver(p, message("behind", "order", "b"), inbox.Parked)
	d.deliver(p, message("old", "order", "a"), inbox.Duplicate)

	d.Exec(`UPDATE public.cdc_relay_inbox SET settled_at = settled_at - interval '2 minutes'`)
	d.Exec(`UPDATE public.cdc_relay_inbox_letter SET created_at = created_at - interval '2 minutes', changed_at = changed_at - interval '2 minutes'`)
	d.deliver(p, message("new", "order", "a"), inbox.Processed)
	d.reads("1", `SELECT public.cdc_inbox_prune('shipping', now() - interval '1 minute')`)
	d.reads("behind dead new", `SELECT string_agg(message_id, ' ' ORDER BY message_id) FROM public.cdc_relay_inbox`)
	d.deliver(p, message("new", "order", "a"), inbox.Duplicate)
	d.deliver(p, message("dead", "order", "b"), inbox.Duplicate)
	d.deliver(p, message("behind", "order", "b"), inbox.Duplicate)
	d.deliver(p, message("old", "order", "a"), inbox.Processed) // The limit.
	d.reads("2", effects+` WHERE message_id = 'old'`)

	mended.Store(true)
	stop := d.run(p)
	d.reads("1", replayAll)
	d.becomes("dead behind", `SELECT string_agg(message_id, ' ' ORDER BY id) FROM public.effect WHERE key = 'b'`)
	stop()
	d.deliver(p, message("dead", "order", "b"), inbox.Duplicate)
	d.deliver(p, message("behind", "order", "b"), inbox.Duplicate)
}

// Replays of what still cannot be handled come to an end each time, feed nothing, and can be repeated. One that is
// interrupted is taken up again, and what has been handled is not handled again.
func TestFailingReplays(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var mended atomic.Bool
	var calls atomic.Int64
	handling := make(chan struct{}, 1)
	cfg := inbox.Config{
		Consumer: "shipping", MaxDeliveries: 3,
		Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			calls.Add(1)
			if !mended.Load() {
				return errors.New("no")
			}
			return write("shipping")(ctx, tx, m)
		},
	}
	p := d.processor(cfg)
	for i := range 4 {
		m := message(strconv.Itoa(i), "order", strconv.Itoa(i))
		for range cfg.MaxDeliveries - 1 {
			d.deliver(p, m, inbox.Retry)
		}
		d.deliver(p, m, inbox.DeadLettered)
	}
	d.reads("dead max_deliveries 3", letterState)
	// Each came with the row that settles its message, in one transaction.
	d.reads("4", `SELECT count(*) FROM public.cdc_relay_inbox_letter l JOIN public.cdc_relay_inbox i USING (message_id, consumer)
		WHERE l.xmin = i.xmin AND i.outcome = 'dead'`)
	stop := d.run(p)
	for round := int64(2); round <= 3; round++ {
		d.reads("4", replayAll)
		d.becomes("4 dead", `SELECT count(*) || ' ' || string_agg(DISTINCT state, ',') FROM public.cdc_relay_inbox_letter WHERE replays = $1`, round-1)
		d.reads("dead max_deliveries 3", letterState)
		d.reads("4 4 0", `SELECT (SELECT count(*) FROM public.cdc_relay_inbox) || ' ' || (SELECT count(*) FROM public.cdc_relay_inbox_letter)
			|| ' ' || (SELECT count(*) FROM public.cdc_relay_inbox_attempt)`)
		if n := calls.Load(); n != round*4*3 {
			t.Errorf("the handler was called %d times, want %d", n, round*4*3)
		}
	}
	stop()

	// The runner is stopped in the middle of a message that can be handled now.
	mended.Store(true)
	once := sync.OnceFunc(func() { close(handling) })
	half := cfg
	half.Handler = func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
		if err := write("shipping")(ctx, tx, m); err != nil {
			return err
		}
		once()
		<-ctx.Done()
		return ctx.Err()
	}
	d.reads("4", replayAll)
	d.reads("0", replayAll)
	stop = d.run(d.processor(half))
	<-handling
	stop()
	d.reads("0", effects)
	d.reads("due", `SELECT string_agg(DISTINCT state, ',') FROM public.cdc_relay_inbox_letter`)

	stop = d.run(p)
	d.becomes("processed", `SELECT string_agg(DISTINCT state, ',') FROM public.cdc_relay_inbox_letter`)
	d.reads("0", replayAll)
	stop()
	d.reads("4", effects)
	for i := range 4 {
		d.deliver(p, message(strconv.Itoa(i), "order", strconv.Itoa(i)), inbox.Duplicate)
	}
}

// What every handler needs is broken. That is taken for what it is: nothing becomes a dead letter that had not failed as
// often as allowed before that was seen, and everything else is handled when it is mended.
func TestBrokenDependency(t *testing.T) {
	t.Parallel()
	const messages, keys = 200, 40
	d := newDesk(t)
	var mended atomic.Bool
	p := d.processor(inbox.Config{
		Consumer: "shipping", MaxDeliveries: 3,
		Breaker: inbox.Breaker{Probe: 20 * time.Millisecond, ProbeMax: 50 * time.Millisecond},
		Handler: func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			if !mended.Load() {
				return errors.New("the address service does not answer")
			}
			return write("shipping")(ctx, tx, m)
		},
	})
	var all sync.WaitGroup
	for k := range keys { // As inboxkafka does: the messages of a key one after the other, each until it is settled.
		all.Go(func() {
			for i := range messages / keys {
				m := message(fmt.Sprintf("%d-%d", k, i), "order", strconv.Itoa(k))
				for {
					r := p.Process(t.Context(), m)
					if r.Outcome != inbox.Retry {
						break
					}
					if testenv.Pause(t.Context(), r.After) != nil {
						return
					}
				}
			}
		})
	}
	stop := d.run(p)
	d.becomes("true", `SELECT breaker_open FROM public.cdc_relay_inbox_consumer`)
	testenv.Pass(t, time.Duration(*scale)*500*time.Millisecond)
	d.reads("0 0", `SELECT (SELECT count(*) FROM public.cdc_relay_inbox) || ' ' || (SELECT count(*) FROM public.cdc_relay_inbox_letter)`)
	mended.Store(true)
	all.Wait()
	d.becomes("false", `SELECT breaker_open FROM public.cdc_relay_inbox_consumer`)
	stop()
	d.reads(fmt.Sprintf("%d %d", messages, messages), `SELECT count(*) || ' ' || count(DISTINCT message_id) FROM public.effect`)
	d.reads("", letterState)
}

// The identity of an event is its id, whatever carries it; its scope is the consumer.
func TestIdentityOfAnEvent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	shipping, billing := d.processor(inbox.Config{Consumer: "shipping"}), d.processor(inbox.Config{Consumer: "billing"})
	first := message("1", "order", "a")
	d.deliver(shipping, first, inbox.Processed)
	again := *first // Sent again: at another place, at another time, perhaps by another relay.
	again.Partition, again.Offset, again.Time = 3, 4711, time.Now()
	d.deliver(shipping, &again, inbox.Duplicate)
	d.deliver(shipping, message("1", "order", "another key"), inbox.Duplicate)
	d.deliver(shipping, message("1", "another topic", "a"), inbox.Duplicate)
	d.deliver(shipping, message("2", "order", "a"), inbox.Processed) // The same content.
	d.deliver(billing, first, inbox.Processed)
	d.reads("billing 1, shipping 1, shipping 2", `SELECT string_agg(consumer || ' ' || message_id, ', ' ORDER BY consumer, message_id)
		FROM public.effect`)
}
