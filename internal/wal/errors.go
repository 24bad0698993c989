package wal

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// ErrClosed is what Next and Barrier return after Close.
var ErrClosed = errors.New("replication stream is closed")

// ErrInterrupted is what Next returns after Interrupt.
var ErrInterrupted = errors.New("reading was interrupted")

// ErrEnded says that the server ended the stream in an orderly way, as a
// walsender does when its server shuts down and everything sent was confirmed.
var ErrEnded = errors.New("the server ended the replication stream (it is shutting down)")

// ServerError is an error or a notice that the server sent. It is told apart
// by SQLSTATE and by Routine, the server's function that raised it, and never
// by its text, which is localised.
type ServerError struct {
	Op       string // what was being done
	Severity string // ERROR, FATAL, PANIC, WARNING, …; never localised
	SQLState string
	Message  string
	Detail   string
	Hint     string
	Where    string // the decoding context: slot, plugin, callback and LSN
	Routine  string
}

// Error returns operation, message and SQLSTATE.
func (e *ServerError) Error() string {
	return fmt.Sprintf("%s: %s (SQLSTATE %s)", e.Op, e.Message, e.SQLState)
}

// Streaming reports that the server sent the error in the stream, where it
// decodes, and not while the connection was made or the stream was started.
func (e *ServerError) Streaming() bool { return e.Op == opStream }

// opStream is the Op of what comes in the stream.
const opStream = "read the replication stream"

// SlotBusy reports that another connection holds the slot.
func (e *ServerError) SlotBusy() bool { return e.SQLState == "55006" }

// SlotMissing reports that the slot does not exist.
func (e *ServerError) SlotMissing() bool {
	return e.SQLState == "42704" && strings.HasPrefix(e.Routine, "ReplicationSlot")
}

// SlotState reports that the slot exists and cannot be used as it is: it was
// invalidated, or it is a synchronised slot on a standby. Which one only
// pg_replication_slots and pg_is_in_recovery can tell.
func (e *ServerError) SlotState() bool {
	return e.SQLState == "55000" && e.Routine != routineStandbySlots && e.Routine != routineLoadPublications
}

// PublicationMissing reports that a publication did not exist at the position
// being decoded. Making it again does not help: the look-up is historic.
// Before 18 it is an error, from 18 on a warning after which changes are left
// out of the stream.
func (e *ServerError) PublicationMissing() bool {
	return e.Routine == routineLoadPublications ||
		e.SQLState == "42704" && strings.Contains(strings.ToLower(e.Routine), "publication")
}

// ShuttingDown reports that the server, or this connection's process, is being
// ended by its operator, or does not accept connections yet. A fast shutdown
// while a failover slot waits for its standby is told by an error of its own.
func (e *ServerError) ShuttingDown() bool {
	switch e.SQLState {
	case "57P01", "57P02", "57P03":
		return true
	}
	return e.Routine == routineStandbySlots && e.Severity == "ERROR"
}

// Denied reports that the credentials are wrong, or the role lacks a right.
func (e *ServerError) Denied() bool {
	return strings.HasPrefix(e.SQLState, "28") || e.SQLState == insufficientPrivilege
}

// insufficientPrivilege is the SQLSTATE of a right that is missing.
const insufficientPrivilege = "42501"

// DatabaseMissing reports that the database does not exist.
func (e *ServerError) DatabaseMissing() bool { return e.SQLState == "3D000" }

// ProtocolError says that the server sent something that this protocol version
// does not allow. It is never skipped: what follows could not be trusted.
type ProtocolError struct {
	Problem string
}

// Error returns the problem. It never holds a byte of a row.
func (e *ProtocolError) Error() string { return "replication protocol: " + e.Problem }

func protocolErrorf(format string, args ...any) error {
	return &ProtocolError{Problem: fmt.Sprintf(format, args...)}
}

// serverError makes the server's error, if err holds one, a *ServerError.
func serverError(op string, err error) error {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", op, err)
	}
	return newServerError(op, pe)
}

func newServerError(op string, pe *pgconn.PgError) *ServerError {
	severity := pe.SeverityUnlocalized
	if severity == "" {
		severity = pe.Severity
	}
	return &ServerError{
		Op: op, Severity: severity, SQLState: pe.Code, Message: pe.Message,
		Detail: pe.Detail, Hint: pe.Hint, Where: pe.Where, Routine: pe.Routine,
	}
}

func streamError(m *pgproto3.ErrorResponse) *ServerError {
	return newServerError(opStream, pgconn.ErrorResponseToPgError(m))
}

func streamNotice(m *pgproto3.NoticeResponse) *ServerError {
	return streamError((*pgproto3.ErrorResponse)(m))
}
