package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Order says what becomes of the later messages of a key when one is dead.
type Order int

// The policies.
const (
	// Park puts later messages of the key away behind the dead one; other keys flow. Once
	// somebody has replayed or discarded it, they are handled in order.
	Park Order = iota
	// Block makes no dead letters: a message is tried for ever, and its key waits.
	Block
	// Skip goes on with the next message of the key.
	Skip
)

// String returns the policy as it is shown.
func (o Order) String() string {
	switch o {
	case Park:
		return "park"
	case Block:
		return "block"
	case Skip:
		return "skip"
	}
	return fmt.Sprintf("order(%d)", int(o))
}

// Backoff is the pause after a delivery that failed: Initial after the first, twice as
// long after each further one up to Max, each shortened at random by up to half so that
// consumers that failed together do not come back together.
type Backoff struct {
	Initial time.Duration // default 1s
	Max     time.Duration // default 1m
}

// after is the pause after n failures.
func (b Backoff) after(n int) time.Duration {
	d := b.Initial
	for i := 1; i < n && d < b.Max; i++ {
		d *= 2
	}
	return jittered(min(d, b.Max))
}

// while is the pause when something has been away for some time: about as long again.
func (b Backoff) while(away time.Duration) time.Duration {
	return jittered(min(max(away, b.Initial), b.Max))
}

// jittered shortens a pause by up to half.
func jittered(d time.Duration) time.Duration {
	return d - rand.N(d/2+1) //nolint:gosec // it spreads retries, and keeps no secret
}

// SequenceMode says what the order of a key is checked by.
type SequenceMode int

// The modes.
const (
	// Off checks nothing.
	Off SequenceMode = iota
	// ByVersion goes by the header aggregateversion: an old one is stale, and one that
	// comes too early waits. A message without the header is checked by position.
	ByVersion
	// ByPosition goes by the position header, which recognises what is stale. It cannot
	// tell a gap.
	ByPosition
)

// GapPolicy says what becomes of a message that comes too early.
type GapPolicy int

// The policies.
const (
	// ParkGap puts it away until the missing version has been handled.
	ParkGap GapPolicy = iota
	// WaitGap has it delivered again for GapTimeout, and then parks it.
	WaitGap
)

// Sequence configures the check of the order within a key. It costs one more row that is
// locked and updated in each transaction.
type Sequence struct {
	Mode  SequenceMode
	OnGap GapPolicy
	// GapTimeout is how long WaitGap waits. Default 1m.
	GapTimeout time.Duration
	// First is the version that a key begins with. Default 1.
	First int64
	// AnyFirst takes whatever version of a key comes first, for topics that do not hold
	// the beginning any more.
	AnyFirst bool
}

// Breaker configures when a consumer stops taking failures for the messages' fault.
type Breaker struct {
	// Failures is how many deliveries in a row have to fail. Default 20.
	Failures int
	// Keys is over how many different keys. Default 5.
	Keys int
	// Probe is the pause before the first probe, ProbeMax the longest. Defaults 1s and 1m.
	Probe, ProbeMax time.Duration
	// Off turns the breaker off.
	Off bool
}

// Config says what a [Processor] does. Consumer, Pool and Handler are required.
type Config struct {
	// Consumer names who handles the messages: each consumer handles each message once.
	// Never change it: under another name everything is new.
	Consumer string
	// Pool is the database of the effects, where the tables of the inbox are.
	Pool *pgxpool.Pool
	// Handler produces the effect.
	Handler Handler
	// TxOptions are those of the transaction that Handler runs in. Default: the server's.
	TxOptions pgx.TxOptions
	// MaxDeliveries is after how many failed deliveries a message is a dead letter. Default 8.
	MaxDeliveries int
	// Backoff is the pause between deliveries.
	Backoff Backoff
	// CountBefore counts a delivery before the handler runs, at the cost of one more
	// transaction: a message that kills the process ends as a dead letter too.
	CountBefore bool
	// Order is the policy for a key with a dead message. Default Park.
	Order Order
	// Sequence checks the order within a key. Default: off.
	Sequence Sequence
	// Breaker keeps a fault that is not the messages' from making all of them dead letters.
	Breaker Breaker
	// Retention is how long settled messages are remembered. It must be longer than a copy
	// can take to come: than the retention of the topic and than the age at which dead
	// letters of the relay are still replayed. Default 7 days; negative: for ever.
	Retention time.Duration
	// PollInterval is how often Run looks for messages that are due. Default 1s.
	PollInterval time.Duration
	// Observer is told what happens. Default: nobody.
	Observer Observer
	// Logger gets one line for each change of state and each dead letter, and never a
	// payload or a key. Default: slog.Default().
	Logger *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// complete fills in the defaults, and says everything that is wrong.
func (c *Config) complete() error {
	orElse(&c.MaxDeliveries, 8)
	orElse(&c.Backoff.Initial, time.Second)
	orElse(&c.Backoff.Max, max(time.Minute, c.Backoff.Initial))
	orElse(&c.Sequence.GapTimeout, time.Minute)
	orElse(&c.Sequence.First, 1)
	orElse(&c.Breaker.Failures, 20)
	orElse(&c.Breaker.Keys, 5)
	orElse(&c.Breaker.Probe, time.Second)
	orElse(&c.Breaker.ProbeMax, max(time.Minute, c.Breaker.Probe))
	orElse(&c.Retention, 7*24*time.Hour)
	orElse(&c.PollInterval, time.Second)
	if c.Observer == nil {
		c.Observer = NopObserver{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default() //nolint:forbidigo // the default of a library that was given none
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	var errs []error
	for _, check := range []struct {
		ok   bool
		text string
	}{
		{c.Consumer != "", "Consumer is empty: name who handles the messages"},
		{len(c.Consumer) <= maxID && textOf(c.Consumer) == c.Consumer, "Consumer is no UTF-8 text of up to 1,000 bytes"},
		{c.TxOptions.AccessMode != pgx.ReadOnly, "TxOptions.AccessMode is ReadOnly: the claim has to be written"},
		{c.Pool != nil, "Pool is nil: give the pool of the database that the effects go to"},
		{c.Handler != nil, "Handler is nil"},
		{c.MaxDeliveries > 0, "MaxDeliveries is negative"},
		{c.Backoff.Initial > 0 && c.Backoff.Max >= c.Backoff.Initial, "Backoff needs 0 < Initial <= Max"},
		{c.Order >= Park && c.Order <= Skip, "Order is none of Park, Block and Skip"},
		{c.Sequence.Mode >= Off && c.Sequence.Mode <= ByPosition, "Sequence.Mode is none of Off, ByVersion and ByPosition"},
		{c.Sequence.OnGap >= ParkGap && c.Sequence.OnGap <= WaitGap, "Sequence.OnGap is neither ParkGap nor WaitGap"},
		{c.Breaker.Failures > 0 && c.Breaker.Keys > 0, "Breaker needs Failures and Keys above 0"},
		{c.Breaker.Probe > 0 && c.Breaker.ProbeMax >= c.Breaker.Probe, "Breaker needs 0 < Probe <= ProbeMax"},
		{c.PollInterval > 0, "PollInterval is negative"},
	} {
		if !check.ok {
			errs = append(errs, errors.New(check.text))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("inbox configuration: %w", err)
	}
	return nil
}

func orElse[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}
