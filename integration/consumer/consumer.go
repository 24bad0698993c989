package consumer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
)

// variable holds the options of a process that is to be a consumer.
const variable = "CDC_RELAY_TEST_CONSUMER"

// Options say what a consumer reads and how it dies.
type Options struct {
	// Name is the name of the consumer, Group that of its group. Default of the latter: Name.
	Name, Group string
	// URL leads to the database of its effects; see [Schema].
	URL string
	// Brokers and Topics are what it reads.
	Brokers, Topics []string
	// Worker tells processes apart in what they leave.
	Worker int
	// Session is Kafka's session time-out. Default 6 s.
	Session time.Duration
	// FailOneIn makes one handler call in so many fail, at random, when its effect is written. Default: none does.
	FailOneIn int
	// CrashBefore and CrashAfter are the number of an event at which the process kills itself: when its effect is written
	// and not committed, or committed and not known to Kafka. Default: none.
	CrashBefore, CrashAfter int64
}

// Event is the payload: the number of the event among those of its key.
type Event struct {
	N int64 `json:"n"`
}

// Main runs the consumer that this process is to be, and reports whether it was to be one. TestMain calls it first.
func Main() (code int, was bool) {
	text, was := os.LookupEnv(variable)
	if !was {
		return 0, false
	}
	var o Options
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		return 1, true
	}
	return 0, true
}

func (o *Options) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return err
	}
	config.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	p, err := inbox.New(inbox.Config{
		Consumer: o.Name, Pool: pool, Handler: o.handle, Logger: logger, Observer: observer{crashAfter: o.CrashAfter},
		Backoff: inbox.Backoff{Initial: 50 * time.Millisecond, Max: time.Second},
	})
	if err != nil {
		return err
	}
	err = inboxkafka.Run(ctx, inboxkafka.Config{
		Brokers: o.Brokers, Group: cmp.Or(o.Group, o.Name), Topics: o.Topics, Concurrency: 8, Logger: logger,
		SessionTimeout: cmp.Or(o.Session, 6*time.Second),
	}, p)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}

// handle writes the effect.
func (o *Options) handle(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
	var e Event
	if err := json.Unmarshal(m.Value, &e); err != nil {
		return inbox.Permanent(errors.New("the payload is no event"))
	}
	if err := Write(ctx, tx, Effect{Consumer: o.Name, MessageID: m.ID, Key: string(m.Key), N: e.N, Worker: o.Worker}); err != nil {
		return err
	}
	if e.N == o.CrashBefore {
		die()
	}
	if o.FailOneIn > 0 && rand.IntN(o.FailOneIn) == 0 {
		return errors.New("a failure that passes")
	}
	return nil
}

// observer is told of a message when its transaction has ended, before Kafka is.
type observer struct {
	inbox.NopObserver

	crashAfter int64
}

func (o observer) Delivered(d inbox.Delivery) {
	if o.crashAfter != 0 && d.Outcome == inbox.Processed {
		die()
	}
}

// die ends the process as a lost machine does, and never returns.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
