package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
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
	problemCatalog  = "catalog"
	problemTables   = "publication"
)

var (
	errOnceTimeout = errors.New("time-out of a single run")
	errDrained     = errors.New("drained")
	errDeposed     = errors.New("the slot is streamed by another connection")
	errSlotChanged = errors.New("the slot changed while it was being acquired")
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
)

// classify decides what an error that ended a session means. An error that
// nobody has marked is transient: trying again loses nothing.
func classify(err error) class {
	var check *catalog.CheckError
	if errors.As(err, &check) {
		if check.Class == catalog.Privilege || check.Class == catalog.Configuration {
			return classPermanent
		}
		return classTransient
	}
	var server *wal.ServerError
	if errors.As(err, &server) {
		if server.Denied() || server.DatabaseMissing() || server.SlotMissing() || server.PublicationMissing() {
			return classPermanent
		}
		return classTransient
	}
	var protocol *wal.ProtocolError
	if errors.As(err, &protocol) {
		return classPermanent
	}
	var kafka *broker.Error
	if errors.As(err, &kafka) && kafka.Denied() {
		return classPermanent
	}
	return classTransient
}

// reason is the label of a reconnect in the metrics: few values, none from
// data.
func reason(err error) string {
	var server *wal.ServerError
	var check *catalog.CheckError
	switch {
	case errors.As(err, &server) && server.ShuttingDown(), errors.Is(err, wal.ErrEnded), errors.Is(err, errShutdown):
		return "server_shutdown"
	case errors.As(err, &server):
		return "server_error"
	case errors.As(err, &check):
		return check.Class.String()
	case errors.Is(err, errDeposed):
		return "deposed"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	default:
		return "connection"
	}
}

// halted records a fault that somebody must act on. One line at the change, a
// reminder every five minutes; the reason stays in readiness meanwhile.
func (r *Relay) halted(source string, err error) {
	if r.state.halt(source, err.Error()) {
		r.log.Error("halted, nothing more is sent or confirmed until this is resolved", "err", err, "retry", haltRetry)
	}
}
