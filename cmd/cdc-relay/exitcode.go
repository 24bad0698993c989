package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/relay"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// Exit codes by class of outcome, for scripts and supervisors.
const (
	exitOK          = 0   // done; also a clean stop after a signal
	exitFailure     = 1   // unexpected
	exitUsage       = 2   // the command line is wrong
	exitNo          = 3   // a check answered no: pending migration, not ready
	exitPartly      = 4   // only partly done: --once ran into --timeout
	exitUnreachable = 69  // a server did not answer in time
	exitSlotHeld    = 75  // another process streams from the slot
	exitPrivilege   = 77  // credentials refused or a privilege missing
	exitConfig      = 78  // the configuration is wrong, or a server lacks what it names
	exitInterrupted = 130 // second signal; a command that is not done at the first
)

// exitError is an error of a command with its class and what to do about it.
type exitError struct {
	err  error
	code int
	next string
}

// Error returns the cause.
func (e *exitError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

// usagef is a mistake on the command line; next is what to type instead.
func usagef(next, format string, args ...any) error {
	return &exitError{fmt.Errorf(format, args...), exitUsage, next}
}

// explain says of an error what is wrong, what to do about it ("" when nothing can be said) and the
// exit code of its class. Packages tell what happened; which code that is, is decided here.
func explain(err error) (what, next string, code int) {
	what = err.Error()
	if e, ok := errors.AsType[*exitError](err); ok {
		return what, e.next, e.code
	}
	if e, ok := errors.AsType[*config.Error](err); ok {
		return what, e.Next(), exitConfig
	}
	if e, ok := errors.AsType[*catalog.CheckError](err); ok {
		return strings.Replace(what, "; next: "+e.Next, "", 1), e.Next, e.Class.ExitCode()
	}
	if _, ok := errors.AsType[*relay.SlotHeldError](err); ok {
		return what, "stop the other process, or leave out --once: run waits as the standby", exitSlotHeld
	}
	if errors.Is(err, relay.ErrDeposed) || errors.Is(err, relay.ErrSlotChanged) {
		return what, "run it again; if another relay has the slot, stop it, or leave out --once: run waits as the standby", exitSlotHeld
	}
	if _, ok := errors.AsType[*publish.TimelineError](err); ok {
		return what, "check that postgres.url names the right primary; if going on from this one is meant, run `cdc-relay init --accept-server`", exitConfig
	}
	if _, ok := errors.AsType[*relay.UnfinishedError](err); ok {
		return what, "run it again; it goes on where it stopped", exitPartly
	}
	if _, ok := errors.AsType[*migrations.ChangedError](err); ok {
		return what, "", exitConfig
	}
	if e, ok := errors.AsType[*wal.ServerError](err); ok {
		return what, e.Hint, replicationCode(e)
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		next, code = e.Hint, sqlCode(e.Code)
		if next == "" && code == exitPrivilege {
			next = "let a DBA run what `cdc-relay init --print` shows, with --database-url for a role that may read everything"
		}
		return what, next, code
	}
	if e, ok := errors.AsType[*broker.Error](err); ok {
		return strings.Replace(what, " ("+e.Hint+")", "", 1), e.Hint, brokerCode(e)
	}
	if disconnected(err) {
		return what, "run it again once the server answers; it goes on where it stopped", exitUnreachable
	}
	return what, "", exitFailure
}

// disconnected reports whether the server went away in the middle of a run that does not wait for it.
func disconnected(err error) bool {
	if operation, ok := errors.AsType[*net.OpError](err); ok {
		return operation.Op != "listen"
	}
	return errors.Is(err, wal.ErrEnded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func replicationCode(e *wal.ServerError) int {
	switch {
	case e.Denied():
		return exitPrivilege
	case e.DatabaseMissing(), e.SlotMissing(), e.PublicationMissing():
		return exitConfig
	case e.SlotBusy():
		return exitSlotHeld
	case e.ShuttingDown():
		return exitUnreachable
	}
	return exitFailure
}

// sqlCode classes a statement's SQLSTATE as package catalog does, for SQL that is not the catalog's.
func sqlCode(state string) int {
	switch {
	case state == "42501", strings.HasPrefix(state, "28"):
		return exitPrivilege
	case strings.HasPrefix(state, "08"), strings.HasPrefix(state, "57P"):
		return exitUnreachable
	}
	return exitFailure
}

func brokerCode(e *broker.Error) int {
	if e.Denied() {
		return exitPrivilege
	}
	return exitUnreachable
}
