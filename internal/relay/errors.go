package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// haltRetry is the pause between attempts while halted; reminder is the pause
// between log lines that say so.
const (
	haltRetry = 30 * time.Second
	reminder  = 5 * time.Minute
)

// The sources of problems that keep the relay from being ready.
const (
	problemPostgres = "postgres"
	problemKafka    = "kafka"
	problemHalt     = "halt"
	problemStuck    = "stream"
	problemCatalog  = "catalog"
	problemTables   = "publication"
	problemLetters  = "dead letters"
)

var (
	// ErrDeposed ends a session whose slot is streamed by another connection.
	ErrDeposed = errors.New("the slot is streamed by another connection")
	// ErrSlotChanged ends a session that found the slot, or the server, to be another
	// than a moment before.
	ErrSlotChanged = errors.New("the slot changed while it was being acquired")

	errOnceTimeout = errors.New("time-out of a single run")
	errDrained     = errors.New("drained")
	errShutdown    = errors.New("the server is shutting down and waits for what is unconfirmed")
)

// SlotHeldError says that another process streams from the slot.
type SlotHeldError struct {
	Slot   string
	Holder string
}

// Error names the holder.
func (e *SlotHeldError) Error() string {
	return fmt.Sprintf("slot %s is held by %s", e.Slot, e.Holder)
}

// class is what follows from an error that ended a session.
type class int

const (
	classTransient class = iota // heals by itself: try again, with backoff
	classPermanent              // somebody must act: exit before the slot was held, halt after
	classFatal                  // the slot is missing, lost or not ours: exit in any case
)

// classify decides what an error that ended a session means. An error that
// nobody has marked is transient: trying again loses nothing, and the checks at
// the start of the next session look closer. So is a publication that the stream
// misses: whether it is gone or only too young, the checks tell.
func classify(err error) class {
	if check, ok := errors.AsType[*catalog.CheckError](err); ok {
		switch {
		case check.Class != catalog.Privilege && check.Class != catalog.Configuration:
			return classTransient
		case check.Check == "slot":
			return classFatal
		}
		return classPermanent
	}
	var server *wal.ServerError
	if errors.As(err, &server) && (server.Denied() || server.DatabaseMissing()) {
		return classPermanent
	}
	if _, ok := errors.AsType[*wal.ProtocolError](err); ok {
		return classPermanent
	}
	if _, ok := errors.AsType[*publish.TimelineError](err); ok {
		return classPermanent
	}
	var kafka *broker.Error
	if errors.As(err, &kafka) && kafka.Denied() {
		return classPermanent
	}
	return classTransient
}

// faults is what a run of sessions has met so far.
type faults struct {
	pause   backoff
	repeats repeats
}

// outcome is what follows from the end of a session.
type outcome struct {
	over   bool          // the process ends
	halted bool          // somebody must act: the slot is kept meanwhile
	pause  time.Duration // until the next session
}

// judge decides what follows from the error that ended s, or that kept it from
// being opened, and says it. A single run waits for nothing, except that it tells
// a history anew, since no later run could get past that either.
func (r *Relay) judge(f *faults, s *session, err error) outcome {
	r.metrics.reconnect(reason(err))
	pause := f.pause.next()
	if doubt, ok := errors.AsType[*publish.HistoryError](err); ok && s != nil {
		r.doubt(s, doubt)
		return outcome{pause: pause}
	}
	class := classify(err)
	if r.cfg.Once || class == classFatal || (class == classPermanent && !r.held) {
		return outcome{over: true}
	}
	source := problemHalt
	if s != nil && s.begun {
		source = problemStuck // It comes again at the same place, so it is over when the position has moved.
	}
	halt := f.repeats.stuck(err, r.resumed.received)
	switch {
	case halt != nil:
		source = problemStuck
	case class == classPermanent:
		halt = r.gapped(err)
	default:
		r.failed(err)
		return outcome{pause: pause}
	}
	r.state.clear(problemPostgres) // It answers, and what it says is this.
	r.halted(source, halt)
	return outcome{halted: true, pause: r.halt}
}

// doubt is the alarm: what a topic holds and what the log says are not of one
// history. All that is known of the topics is void then, so what is not confirmed
// is published again, under a new history.
func (r *Relay) doubt(s *session, err *publish.HistoryError) {
	r.doubted = s.history
	r.log.Error("the topic and the slot are not of one history: everything that is not confirmed is published again",
		"topic", err.Topic, "partition", err.Partition, "reason", err.Reason, "after", s.stream.Confirmed().String(),
		"next", "find out whether the server was restored, or the topic was deleted or lost records; consumers see these events again")
}

// repeats finds a server error that comes back at the same position: the
// server cannot send what is there, for example a row whose text is larger
// than the gigabyte that one message may have. Trying again at once will not
// help, and nobody but an operator may decide to pass it.
type repeats struct {
	received pglogrepl.LSN
	state    string
	count    int
}

// repeatLimit is how often the same error at the same position is taken for
// chance.
const repeatLimit = 3

// stuck notes the error that ended a session and returns one that names the
// position when it has come back too often, else nil.
func (p *repeats) stuck(err error, received pglogrepl.LSN) error {
	var server *wal.ServerError
	if !errors.As(err, &server) || !server.Streaming() {
		return nil // says nothing about the place: also a session that fails before it has read anything
	}
	if server.ShuttingDown() || server.SlotBusy() {
		*p = repeats{}
		return nil
	}
	if p.received != received || p.state != server.SQLState {
		*p = repeats{received: received, state: server.SQLState}
	}
	if p.count++; p.count < repeatLimit {
		return nil
	}
	if server.PublicationMissing() { // the checks have found it, so it was made later
		return fmt.Errorf("rows after %s cannot be decoded, since the publication did not exist when they were written: %w; next: stop cdc-relay, "+
			"send what is missing from the outbox table, then pass these rows with pg_replication_slot_advance", received, err)
	}
	where := server.Where
	if where == "" {
		where = server.Detail
	}
	return fmt.Errorf("the server fails at the same place again and again, after %s: %w (%s); next: remove the cause, "+
		"or accept that the transaction there is lost and pass it with pg_replication_slot_advance", received, err, where)
}

// reason is the label of a reconnect in the metrics: few values, none from
// data.
func reason(err error) string {
	var server *wal.ServerError
	var check *catalog.CheckError
	var history *publish.HistoryError
	var timeline *publish.TimelineError
	switch {
	case errors.As(err, &history):
		return "history"
	case errors.As(err, &timeline):
		return "timeline"
	case errors.As(err, &server) && server.ShuttingDown(), errors.Is(err, wal.ErrEnded), errors.Is(err, errShutdown):
		return "server_shutdown"
	case errors.As(err, &server):
		return "server_error"
	case errors.As(err, &check):
		return check.Class.String()
	case errors.Is(err, ErrDeposed):
		return "deposed"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	default:
		return "connection"
	}
}

// gapped notes that the stream has lacked rows since the publication was fine
// last, if that is what err says, and names the position. Before the first
// session there is none.
func (r *Relay) gapped(err error) error {
	check, ok := errors.AsType[*catalog.CheckError](err)
	if r.gap = r.gap || ok && check.Gap && r.held; !r.gap {
		return err
	}
	return fmt.Errorf("%w (rows committed after %s may be missing from the stream)", err, r.lastGood)
}

// complete notes that the publication is fine, at a moment when the server had
// written up to walEnd: what was committed in a gap before will never come.
func (r *Relay) complete(walEnd pglogrepl.LSN) {
	if r.gap {
		r.log.Error("the publication is complete again: events committed in this range may be missing from the topics",
			"after", r.lastGood.String(), "up_to", walEnd.String())
	}
	r.gap = false
}

// timelineNext is what to do about a topic that a later primary has written to.
const timelineNext = "check that postgres.url names the right primary; " +
	"if going on from this one is meant, run `cdc-relay init --accept-server`"

// halted records a fault that somebody must act on. One line at the change, a
// reminder every five minutes; the reason stays in readiness meanwhile.
func (r *Relay) halted(source string, err error) {
	if _, ok := errors.AsType[*publish.TimelineError](err); ok {
		err = fmt.Errorf("%w; next: %s", err, timelineNext)
	}
	if r.state.halt(source, err.Error()) {
		r.log.Error("halted, nothing more is sent or confirmed until this is resolved", "err", err, "retry", r.halt.String())
	}
}
