package inbox

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// Classes of errors, by the SQLSTATE codes of PostgreSQL's documentation, appendix A.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	readOnlyTransaction  = "25006"
	inFailedTransaction  = "25P02"
)

// isConflict says that the transaction only has to run again.
func isConflict(err error) bool {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pe.Code == serializationFailure || pe.Code == deadlockDetected)
}

// isAborted says that an earlier statement of the transaction has failed.
func isAborted(err error) bool {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pe.Code == inFailedTransaction
}

// isAway says that the database cannot be used for the moment, so that neither message
// nor handler is at fault: no connection, a server that starts or stops, no room for
// another session or on the disk, or a server that only reads, as after a failover.
//
// Of a handler's error only what a PostgreSQL server says is taken for that: the end of
// a payload (io.EOF) or the network of another service is the handler's business, and
// whether its connection was lost is known where it was called.
func isAway(err error) bool {
	if _, ok := errors.AsType[*awayError](err); ok {
		return true
	}
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		class := pe.Code[:min(2, len(pe.Code))]
		return class == "08" || class == "53" || strings.HasPrefix(pe.Code, "57P") || pe.Code == readOnlyTransaction
	}
	if _, ok := errors.AsType[*handlerError](err); ok {
		return false
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return true
	}
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return refused || network && !errors.Is(err, context.DeadlineExceeded)
}

// maxError is how much of an error's text is kept.
const maxError = 1000

// sanitise returns the text of a handler's error as it may be stored: without the
// message's value, should the error repeat it, without what PostgreSQL repeats of a value
// that it does not take, cut to maxError bytes, valid UTF-8 and on one line.
func sanitise(err error, m *Message) string {
	text := err.Error()
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok && (strings.HasPrefix(pe.Code, "22") || strings.HasPrefix(pe.Code, "23")) {
		text = strings.ReplaceAll(text, pe.Error(), "SQLSTATE "+pe.Code+constraintOf(pe))
		if pe.Message != "" {
			text = strings.ReplaceAll(text, pe.Message, "…")
		}
	}
	for _, secret := range [][]byte{m.Value, m.Key} {
		if len(secret) >= 4 {
			text = strings.ReplaceAll(text, string(secret), "…")
		}
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) <= maxError {
		return text
	}
	cut := maxError
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}

func constraintOf(pe *pgconn.PgError) string {
	if pe.ConstraintName == "" {
		return ""
	}
	return " (constraint " + pe.ConstraintName + ")"
}
