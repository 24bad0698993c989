// Package relay runs the pipeline: it waits for the slot, streams, hands rows
// to their lanes, moves the confirmed position behind what is settled, and
// starts over when a connection ends. It starts and awaits every goroutine of
// the pipeline and contains no SQL, no Kafka request and no HTTP.
//
// The process goes through sessions, one per replication connection. What the
// lanes know (package publish) lives as long as the process; the stream and
// the watermark live as long as the session.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// Config of a Relay.
type Config struct {
	Catalog catalog.Config
	WAL     wal.Config

	// Spec is what must exist in the database: the slot, the publication, the
	// outbox tables with the columns that must arrive from each, and published
	// tables whose inserts are passed over.
	Spec catalog.Spec

	// Routing is everything that decides where records go. The database name
	// is filled in by the relay.
	Routing position.Routing

	DeadLetters DeadLetters

	// ShutdownTimeout bounds a clean stop: what is in flight then is sent again
	// after the next start.
	ShutdownTimeout time.Duration

	// Init, when not nil, runs over the ordinary connection before the checks of
	// each session until it has succeeded once; it creates what is missing.
	Init func(context.Context, *catalog.DB) error

	// Once makes Run end when everything up to the position at the start has
	// been confirmed. Then nothing is waited for: an unreachable server or
	// broker and a held slot are errors.
	Once bool
	// OnceTimeout ends Run with an *UnfinishedError when it passes first; 0 is
	// no limit.
	OnceTimeout time.Duration
}

// Kafka is what the relay asks about the brokers.
type Kafka interface {
	// Ping returns nil when a broker has answered on the wire.
	Ping(context.Context) error
}

// Relay is one relay process. Create it with New, run it once.
type Relay struct {
	cfg       Config
	mapper    *record.Mapper
	publisher *publish.Publisher
	kafka     Kafka
	log       *slog.Logger
	metrics   *metrics
	state     *state

	openStore  func(context.Context) (store, error)
	checkStore func(context.Context, *catalog.DB) error

	halt     time.Duration // pause between attempts while halted
	held     bool          // the slot has been ours in this process
	resumed  resumePoint   // what the last session of this process confirmed
	doubted  string        // history that a topic does not agree with, to be renewed
	lastGood pglogrepl.LSN // stream position when the publication was fine last
	gap      bool          // since then the stream has lacked rows
	prepared bool          // Config.Init has succeeded
	warned   []string      // findings that were logged
	left     int           // rows not acknowledged when the last stop gave up waiting
	breaker  breaker
	letters  atomic.Pointer[letters] // of the session that runs; nil between sessions, and without the table
	buried   burials
	progress atomic.Int64 // unix nanoseconds of the last sign of life of the loops
}

// resumePoint is where the last session of this process ended.
type resumePoint struct {
	recorded            time.Time // of its last entry in the state row
	confirmed, received pglogrepl.LSN
}

// New puts a relay together. reg may be nil.
func New(cfg Config, mapper *record.Mapper, publisher *publish.Publisher, kafka Kafka,
	log *slog.Logger, reg prometheus.Registerer,
) *Relay {
	r := &Relay{
		cfg: cfg, mapper: mapper, publisher: publisher, kafka: kafka,
		log:     log.With("slot", cfg.Spec.Slot),
		state:   newState(),
		halt:    haltRetry,
		breaker: breaker{window: cfg.DeadLetters.Window, share: cfg.DeadLetters.Share},
	}
	r.openStore, r.checkStore = r.openTableStore, r.checkTable
	r.metrics = newMetrics(r, reg)
	r.beat()
	return r
}

// Run relays until ctx is cancelled, then stops cleanly and returns nil. It
// returns an error only for a permanent fault found before the slot was held,
// and with Config.Once for everything that keeps it from finishing.
func (r *Relay) Run(ctx context.Context) (err error) {
	// The lanes outlive ctx: a clean stop waits for what they have in flight.
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- r.publisher.Run(background) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-done)
	}()
	if r.cfg.OnceTimeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, r.cfg.OnceTimeout, errOnceTimeout)
		defer stop()
	}
	err = r.sessions(ctx)
	if errors.Is(context.Cause(ctx), errOnceTimeout) && !errors.Is(err, errDrained) {
		return &UnfinishedError{Timeout: r.cfg.OnceTimeout, Unsettled: r.left, Confirmed: r.resumed.confirmed}
	}
	if errors.Is(err, errDrained) || ctx.Err() != nil {
		return nil
	}
	return err
}

// sessions runs one session after another. Each ends with an error that is
// classified here and nowhere else.
func (r *Relay) sessions(ctx context.Context) error {
	var faults faults
	for {
		r.beat()
		before := r.metrics.transactions.Load()
		s, err := r.open(ctx)
		if err == nil {
			err = s.live(ctx)
		}
		if ctx.Err() != nil || errors.Is(err, errDrained) {
			s.close(ctx)
			return err
		}
		if r.metrics.transactions.Load() > before {
			faults.pause = backoff{}
		}
		next := r.judge(&faults, s, err)
		if next.over {
			s.close(ctx)
			return err
		}
		if next.halted && s != nil {
			next.pause -= s.keep(ctx, next.pause)
		}
		s.close(ctx)
		r.state.enter(RoleStarting, "")
		if !wait(ctx, next.pause) {
			return nil
		}
	}
}

// failing records what one part of a running session cannot do for now: one line when
// it begins.
func (r *Relay) failing(source, what string, err error) {
	if r.state.fail(source, what+": "+err.Error()) {
		r.log.Warn(what, "err", err)
	}
}

// failed records an error that heals by itself: one line when it begins.
func (r *Relay) failed(err error) {
	source := problemPostgres
	if kafka := (*broker.Error)(nil); errors.As(err, &kafka) {
		source = problemKafka
	}
	if r.state.fail(source, err.Error()) {
		r.log.Warn("not streaming, trying again", "cause", source, "err", err)
	}
}

// recovered clears what failed and halted have recorded. That the stream is stuck
// is over only when the position has moved.
func (r *Relay) recovered() {
	for _, source := range []string{problemPostgres, problemKafka, problemHalt} {
		r.recoveredFrom(source)
	}
}

// recoveredFrom clears one problem of a running session.
func (r *Relay) recoveredFrom(source string) {
	if r.state.clear(source) {
		r.log.Info("resolved", "problem", source)
	}
}

// beat notes that the supervising loops move; Alive reads it.
func (r *Relay) beat() { r.progress.Store(time.Now().UnixNano()) }

// Alive reports whether the loops of the relay have moved within two minutes.
// Every wait in them is shorter, whatever Postgres and Kafka do.
func (r *Relay) Alive() bool {
	return time.Since(time.Unix(0, r.progress.Load())) < watchdog
}

const watchdog = 2 * time.Minute

// UnfinishedError is returned by a run with Config.Once when its time-out
// passes first.
type UnfinishedError struct {
	Timeout   time.Duration
	Unsettled int // rows read and not acknowledged
	Confirmed pglogrepl.LSN
}

// Error names the count and the position reached.
func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("not drained after %v: %d rows read and not acknowledged, confirmed up to %s", e.Timeout, e.Unsettled, e.Confirmed)
}
