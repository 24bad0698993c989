package inboxkafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/inbox"
)

const (
	joinBackoff = time.Second
	// stopTimeout bounds the farewell to a group that does not answer.
	stopTimeout = 10 * time.Second
)

// Run reads the topics as a member of the group and has p handle each record, until ctx
// ends; then it finishes what it has begun, commits, leaves the group, and returns nil. It
// also runs p.Run. An error says that it could not begin.
//
// An offset is committed only once everything before it is settled: processed, a
// duplicate, stale, parked, or a dead letter. A record that is to be tried again holds its
// key, others of the partition go on until MaxInFlight are in the air, and then the
// partition is not fetched.
//
// Faults of brokers and of the database are waited out, with one line when they begin and
// one when they end. At a rebalance the member finishes what runs, commits it, and gives
// the partitions back.
//
// Records of transactions that are open or were aborted are not read, and neither are the
// control records of transactions (isolation.level read_committed).
//
// While some of the topics do not exist the others are read. One that comes, or goes, is a
// rebalance a few seconds later.
func Run(ctx context.Context, cfg Config, p *inbox.Processor) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	defer cfg.close()
	client := &kafka.Client{Addr: kafka.TCP(cfg.Brokers...), Transport: cfg.Transport, Timeout: fetchTimeout}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.Run(running) }) // always nil
	defer wg.Wait()
	defer stop()
	f := newFaults(&cfg)
	var warned []string
	for {
		topics := awaitTopics(ctx, &cfg, client, &f.topics)
		if len(topics) == 0 {
			return nil
		}
		warnOfRetention(ctx, &cfg, client, p, without(topics, warned))
		warned = append(warned, topics...)
		if err := readTopics(ctx, &cfg, client, p, f, topics); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// readTopics reads topics until there are others to read, or ctx ends.
func readTopics(ctx context.Context, cfg *Config, client *kafka.Client, p *inbox.Processor, f *faults, topics []string) error {
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: cfg.Group, Brokers: cfg.Brokers, Dialer: cfg.Dialer, Topics: topics,
		StartOffset: kafka.FirstOffset, SessionTimeout: cfg.SessionTimeout, HeartbeatInterval: cfg.SessionTimeout / 10,
		RebalanceTimeout: max(cfg.SessionTimeout, 2*cfg.DrainTimeout), JoinGroupBackoff: joinBackoff,
		WatchPartitionChanges: true, PartitionWatchInterval: topicsInterval,
		Timeout: min(cfg.SessionTimeout/2, 10*time.Second),
	})
	if err != nil {
		return fmt.Errorf("join group %s: %w", cfg.Group, err)
	}
	ctx, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		defer stop()
		untilChanged(ctx, cfg, client, topics)
	})
	defer watch.Wait()
	defer stop()
	member(ctx, cfg, client, p, f, group)
	return nil
}

// member works as a member of the group until ctx ends, and leaves it then.
func member(ctx context.Context, cfg *Config, client *kafka.Client, p *inbox.Processor, f *faults, group *kafka.ConsumerGroup) {
	var sessions sync.WaitGroup
	for {
		g, err := group.Next(ctx)
		if ctx.Err() != nil {
			break
		}
		f.joins.after(err)
		if err != nil {
			if errors.Is(err, kafka.ErrGroupClosed) {
				break
			}
			continue // The group itself pauses.
		}
		s := newSession(cfg, p, client, g)
		s.commits = &f.commits
		sessions.Add(1)
		g.Start(func(generation context.Context) {
			defer sessions.Done()
			ended := make(chan struct{})
			finish := sync.OnceFunc(func() { close(ended) })
			defer context.AfterFunc(ctx, finish)()
			done := make(chan struct{})
			defer close(done)
			go func() {
				select {
				case <-generation.Done():
					finish()
				case <-done:
				}
			}()
			s.run(context.WithoutCancel(ctx), ended)
		})
	}
	sessions.Wait() // While the member is alive: its heartbeats go on as it drains.
	closed := make(chan struct{})
	go func() { defer close(closed); _ = group.Close() }()
	select {
	case <-closed:
	case <-time.After(stopTimeout):
		cfg.Logger.Warn("the group was not left in time, and notices by itself", "group", cfg.Group)
	}
}

// faults are what keeps a member from its work, for all its generations.
type faults struct{ topics, joins, commits trouble }

func newFaults(cfg *Config) *faults {
	args := []any{"group", cfg.Group}
	return &faults{
		topics:  trouble{log: cfg.Logger, what: "waiting for topics", args: args},
		joins:   trouble{log: cfg.Logger, what: "cannot join the group", args: args},
		commits: trouble{log: cfg.Logger, what: "cannot commit offsets", args: args},
	}
}

// trouble logs the first of a row of failures and its end, and says how long to wait.
type trouble struct {
	log  *slog.Logger
	what string
	args []any

	mu       sync.Mutex
	failures int
	since    time.Time
}

// after notes how an attempt ended and returns the pause before the next.
func (t *trouble) after(err error) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		if t.failures > 0 {
			t.log.Info("over: "+t.what, append(t.args, "after", time.Since(t.since).Round(time.Millisecond), "failures", t.failures)...)
		}
		t.failures = 0
		return 0
	}
	if t.failures == 0 {
		t.since = time.Now()
		t.log.Warn(t.what+", trying again", append(t.args, "err", err)...)
	}
	t.failures++
	return backoff(t.failures)
}

// backoff is the pause after so many failures in a row.
func backoff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	return min(fetchBackoff<<min(failures-1, 10), fetchBackoffMax)
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
