package measure

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"
)

// watchInterval is how often a slot is looked at while a reader drains it: the resolution of the times.
const watchInterval = 20 * time.Millisecond

// Drain is a backlog and how fast it was drained.
type Drain struct {
	Rows               int        `json:"rows"`
	RowsPerTransaction int        `json:"rows_per_transaction"`
	Rounds             []Round    `json:"rounds"`
	Relay              DrainRun   `json:"relay_median"`
	Reference          *DrainRun  `json:"pg_recvlogical_median,omitempty"`
	Ratio              float64    `json:"ratio,omitempty"`       // events a second: median of relay over pg_recvlogical, round by round
	RatioRange         [2]float64 `json:"ratio_range,omitempty"` // lowest and highest of the rounds
}

// Round is one run of each reader, one right after the other.
type Round struct {
	Relay     DrainRun  `json:"relay"`
	Reference *DrainRun `json:"pg_recvlogical,omitempty"`
}

// DrainRun is one reader at work. Its times begin when the server says that the slot is streamed and end when the last
// row is acknowledged and confirmed (relay), or received (pg_recvlogical).
type DrainRun struct {
	StartSeconds    float64 `json:"start_seconds"` // from the start of the process until it streams
	Seconds         float64 `json:"seconds"`
	EventsPerSecond float64 `json:"events_per_second"`
	CPUMicroseconds float64 `json:"cpu_microseconds_per_event"`           // of the reader's own process, user and system
	WalsenderMicro  float64 `json:"walsender_cpu_microseconds_per_event"` // of the server's process that decodes
	BrokerMicro     float64 `json:"broker_cpu_microseconds_per_event"`    // of Kafka
	PeakBytes       int64   `json:"peak_bytes"`                           // VmHWM

	events                           int
	cpu, cpuOfWalsender, cpuOfBroker time.Duration
}

// Drain measures backlogs of one-row and of 100-row transactions: the relay, then pg_recvlogical, again and again, each
// on a copy of the slot that the backlog was written behind.
func (l *Lab) Drain(ctx context.Context) ([]Drain, error) {
	var all []Drain
	for _, shape := range []struct{ rows, size int }{{l.opts.SingleRows, 1}, {l.opts.BatchRows, 100}} {
		d, err := l.drainShape(ctx, shape.rows, shape.size)
		if err != nil {
			return all, err
		}
		all = append(all, d)
	}
	return all, nil
}

func (l *Lab) drainShape(ctx context.Context, rows, size int) (Drain, error) {
	d := Drain{Rows: rows, RowsPerTransaction: size}
	base, err := l.newSlot(ctx)
	if err != nil {
		return d, err
	}
	target, err := l.fill(ctx, rows/size, size, 0)
	if err != nil {
		return d, err
	}
	// The first run counts for nothing: it has Kafka's code compiled and the caches filled.
	if _, err := l.drainRelay(ctx, base, target, rows); err != nil {
		return d, fmt.Errorf("drain with the relay: %w", err)
	}
	for i := range l.opts.Rounds {
		var round Round
		if round.Relay, err = l.drainRelay(ctx, base, target, rows); err != nil {
			return d, fmt.Errorf("drain with the relay: %w", err)
		}
		if path, missing := exec.LookPath("pg_recvlogical"); missing == nil {
			run, err := l.drainReference(ctx, path, base, target, rows)
			if err != nil {
				return d, fmt.Errorf("drain with pg_recvlogical: %w", err)
			}
			round.Reference = &run
		}
		l.say("%d rows a transaction, round %d of %d: %s", size, i+1, l.opts.Rounds, round)
		d.Rounds = append(d.Rounds, round)
	}
	d.summarise()
	return d, errors.Join(l.dropSlot(ctx, base), l.clear(ctx))
}

// drainRelay has the relay drain a copy of the slot to Kafka, and checks that Kafka has every row once.
func (l *Lab) drainRelay(ctx context.Context, base string, target pglogrepl.LSN, rows int) (DrainRun, error) {
	slot, err := l.copySlot(ctx, base)
	if err != nil {
		return DrainRun{}, err
	}
	topic := topicOf(slot)
	if err := l.createTopic(ctx, topic); err != nil {
		return DrainRun{}, err
	}
	config, err := l.writeConfig(slot, "127.0.0.1:0", nil)
	if err != nil {
		return DrainRun{}, err
	}
	reader, err := start(l.relay, "run", "--once", "--config", config)
	if err != nil {
		return DrainRun{}, err
	}
	run, err := l.watch(ctx, reader, slot, func(s slotState) bool { return s.confirmed >= target }, rows)
	if err != nil {
		return run, err
	}
	count, err := l.recordsIn(ctx, topic)
	if err == nil && count != int64(rows) {
		err = fmt.Errorf("topic has %d records, not %d", count, rows)
	}
	return run, errors.Join(err, l.deleteTopic(ctx, topic), l.dropSlot(ctx, slot))
}

// drainReference has pg_recvlogical drain a copy of the slot to nowhere, with the options that the relay uses.
func (l *Lab) drainReference(ctx context.Context, path, base string, target pglogrepl.LSN, rows int) (DrainRun, error) {
	slot, err := l.copySlot(ctx, base)
	if err != nil {
		return DrainRun{}, err
	}
	reader, err := start(path, "--dbname", l.pg.URL(database), "--slot", slot, "--start", "--no-loop", "--file", "/dev/null",
		"--plugin", "pgoutput", "--option", "proto_version=1", "--option", "publication_names="+publication, "--option", "messages=true",
		"--endpos", target.String())
	if err != nil {
		return DrainRun{}, err
	}
	run, err := l.watch(ctx, reader, slot, func(slotState) bool { return !reader.Running() }, rows)
	return run, errors.Join(err, l.dropSlot(ctx, slot))
}

// watch measures a reader until done says so and then waits for its end.
func (l *Lab) watch(ctx context.Context, reader *child, slot string, done func(slotState) bool, rows int) (DrainRun, error) {
	defer func() { _ = reader.Signal(syscall.SIGKILL) }()
	run := DrainRun{events: rows}
	var began, ended time.Time
	var before, senderBefore, brokerBefore time.Duration
	broker := l.kafka.Brokers()[0].PID()
	for reader.Running() || ended.IsZero() {
		s, err := l.slot(ctx, slot)
		if err != nil {
			return run, err
		}
		now := time.Now()
		switch {
		case began.IsZero() && s.pid != 0:
			began = now
			before, _ = cpuOf(reader.PID())
			senderBefore, _ = cpuOf(s.pid)
			brokerBefore, _ = cpuOf(broker)
		case began.IsZero() && !reader.Running():
			return run, reader.failure()
		case !began.IsZero() && ended.IsZero() && done(s):
			ended = now
			used, _ := cpuOf(broker)
			run.cpuOfBroker = used - brokerBefore
		case !began.IsZero() && ended.IsZero() && !reader.Running():
			return run, reader.failure()
		}
		if peak, err := peakOf(reader.PID()); err == nil {
			run.PeakBytes = peak
		}
		if used, err := cpuOf(s.pid); s.pid != 0 && err == nil {
			run.cpuOfWalsender = used - senderBefore
		}
		if err := pause(ctx, watchInterval); err != nil {
			return run, err
		}
	}
	if state := reader.State(); state.ExitCode() != 0 {
		return run, reader.failure()
	}
	run.cpu = reader.State().UserTime() + reader.State().SystemTime() - before
	run.finish(began.Sub(reader.started), ended.Sub(began))
	return run, nil
}
