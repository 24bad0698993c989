package inboxtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Shuffled delivers the messages in an order that seed decides, each once or twice, until
// they are settled. No broker does that to messages of one key: it shows what a handler
// does that others call, too, or whether [inbox.Sequence] is on. Some may be parked
// afterwards; see [Consumer.RunParked].
func (c *Consumer) Shuffled(seed uint64, messages ...*inbox.Message) {
	c.t.Helper()
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable, not secret
	var order []*inbox.Message
	for _, m := range messages {
		for range 1 + random.IntN(2) {
			order = append(order, m)
		}
	}
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	c.t.Logf("inboxtest: shuffled with seed %d", seed)
	for _, m := range order {
		c.DeliverUntilSettled(m)
	}
}

// Rewound delivers the messages in their order, and goes back to an earlier one now and
// then, as a consumer does that restarts or whose partitions move: seed decides where.
// Each of them is settled at the end.
func (c *Consumer) Rewound(seed uint64, messages ...*inbox.Message) {
	c.t.Helper()
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // repeatable, not secret
	c.t.Logf("inboxtest: rewound with seed %d", seed)
	for i := range messages {
		c.DeliverUntilSettled(messages[i])
		if random.IntN(3) > 0 {
			continue
		}
		c.restart()
		for back := random.IntN(i + 1); back <= i; back++ {
			if r := c.DeliverUntilSettled(messages[back]); r.Outcome != inbox.Duplicate {
				c.t.Fatalf("inboxtest: delivered again, %s, not a duplicate", describe(messages[back], r))
			}
		}
	}
}

// RunParked runs the consumer's runner until nothing is due and no parked message is
// left, and fails the test when that takes longer than [Patience].
func (c *Consumer) RunParked() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.processor.Run(ctx) }()
	err := c.untilNoneWaits(ctx)
	cancel()
	if err := errors.Join(err, <-ended); err != nil {
		c.t.Fatalf("inboxtest: %v", err)
	}
}

func (c *Consumer) untilNoneWaits(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		var waits int64
		err := c.cfg.Pool.QueryRow(ctx, `SELECT count(*) FROM public.cdc_relay_inbox_letter
			WHERE consumer = $1 AND state IN ('parked', 'due')`, c.cfg.Consumer).Scan(&waits)
		if err == nil && waits == 0 {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			if err == nil {
				err = errors.New("messages are still parked or due; is the one that they wait for dead?")
			}
			return err
		}
	}
}
