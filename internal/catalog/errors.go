package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Class says what kind of fault an error is, and with it the exit code of a
// command that gives up because of it.
type Class uint8

const (
	// Unexpected is a fault that this package has no rule for.
	Unexpected Class = iota
	// Unreachable: the server is away, starting, stopping, full or too slow. It
	// heals by itself; the caller waits and tries again.
	Unreachable
	// Privilege: a right is missing or the credentials are refused.
	Privilege
	// Configuration: a setting is wrong, or the server lacks what it names.
	Configuration
)

// ExitCode returns the process exit code of the class, as in sysexits.h: 69, 77,
// 78, and 1 for what is unexpected.
func (c Class) ExitCode() int {
	switch c {
	case Unreachable:
		return 69
	case Privilege:
		return 77
	case Configuration:
		return 78
	default:
		return 1
	}
}

// String returns the class in words.
func (c Class) String() string {
	switch c {
	case Unreachable:
		return "unreachable"
	case Privilege:
		return "privilege"
	case Configuration:
		return "configuration"
	default:
		return "unexpected"
	}
}

// CheckError is every error of this package that is not the caller's own
// cancelled context: what is wrong, and what to do about it.
type CheckError struct {
	Check   string // what was looked at: "connection", "table", "slot", …
	Problem string // what is wrong, one sentence without a full stop
	Next    string // the next step, with the exact SQL or command; may be empty
	Class   Class
	Err     error // the cause, when there is one; never contains a secret
}

// Error returns problem, cause and next step in one line.
func (e *CheckError) Error() string {
	var b strings.Builder
	b.WriteString(e.Problem)
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	if e.Next != "" {
		b.WriteString("; next: ")
		b.WriteString(e.Next)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *CheckError) Unwrap() error { return e.Err }

// Transient reports whether waiting may cure the fault.
func (e *CheckError) Transient() bool { return e.Class == Unreachable }

// Warning is a finding that does not stop the relay.
type Warning struct {
	Check   string // as in [CheckError]
	Problem string // what is doubtful, one sentence without a full stop
	Next    string // how to change it; may be empty
}

// String returns problem and next step in one line.
func (w Warning) String() string {
	if w.Next == "" {
		return w.Problem
	}
	return w.Problem + "; next: " + w.Next
}

// SQLSTATE values that are told apart here; see "PostgreSQL Error Codes" in the
// PostgreSQL documentation.
const (
	stateProtocolViolation   = "08P01"
	stateInvalidAuth         = "28000"
	stateInvalidPassword     = "28P01"
	stateUnknownDatabase     = "3D000"
	stateNoPrivilege         = "42501"
	stateUndefinedTable      = "42P01"
	stateUndefinedObject     = "42704"
	stateTooManyConnections  = "53300"
	stateConfigLimit         = "53400"
	stateLockNotAvailable    = "55P03"
	stateQueryCanceled       = "57014"
	stateAdminShutdown       = "57P01"
	stateCrashShutdown       = "57P02"
	stateCannotConnectNow    = "57P03"
	stateIdleSessionTimeout  = "57P05"
	stateNotInPrerequisite   = "55000"
	stateDuplicateObject     = "42710"
	stateFeatureNotSupported = "0A000"
)

// SQLState returns the SQLSTATE in the chain of err, or "".
func SQLState(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// Terminated reports whether the server ended the connection by an
// administrator's command (57P01). Followed by [Refused] on the next attempt it
// means that the server is shutting down.
func Terminated(err error) bool { return SQLState(err) == stateAdminShutdown }

// Refused reports whether the server is up but takes no connection now (57P03:
// starting up, shutting down, or recovering).
func Refused(err error) bool { return SQLState(err) == stateCannotConnectNow }

// connStringError says why a connection string is no good without repeating any
// of it. The driver masks passwords on a best-effort basis only, so its text,
// which quotes the string, is not used, and its error is not kept as a cause,
// since it holds the string itself.
func connStringError(err error) error {
	e := &CheckError{
		Check:   "connection",
		Problem: "postgres.url is not a valid connection string",
		Next:    "write postgres://user@host:5432/database?sslmode=verify-full and percent-encode special characters of user and password",
		Class:   Configuration,
	}
	// What follows the quoted string; the string itself may contain anything.
	_, reason, _ := cutLast(err.Error(), "`: ")
	for prefix, problem := range connStringProblems {
		if strings.HasPrefix(reason, prefix) {
			e.Problem += ": " + problem
			break
		}
	}
	return e
}

// connStringProblems maps the driver's fixed texts to ours.
var connStringProblems = map[string]string{
	"failed to parse as URL":       "it cannot be read as a URL",
	"failed to parse as keyword":   "it cannot be read as keyword=value pairs",
	"failed to read service":       "the service that it names cannot be read (service, PGSERVICE, PGSERVICEFILE)",
	"failed to configure TLS":      "its TLS settings cannot be used (sslmode, sslrootcert, sslcert, sslkey)",
	"invalid sslcertmode":          "its sslcertmode is not valid",
	"invalid connect_timeout":      "its connect_timeout is not a number of seconds",
	"invalid port":                 "its port is not valid",
	"could not match":              "it has another number of ports than of hosts",
	"unknown target_session_attrs": "its target_session_attrs is not known",
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// connectError classifies what a connection attempt came back with.
func connectError(err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	e := &CheckError{Check: "connection", Problem: "cannot connect to PostgreSQL", Class: Unreachable, Err: err}
	switch state := SQLState(err); state {
	case stateInvalidPassword, stateInvalidAuth:
		e.Class = Privilege
		e.Next = "check user and password (postgres.url, postgres.password_file) and the server's pg_hba.conf"
	case stateNoPrivilege:
		e.Class = Privilege
		e.Next = "as the owner of the database: GRANT CONNECT ON DATABASE … TO the relay's role"
	case stateUnknownDatabase:
		e.Class = Configuration
		e.Next = "name an existing database in postgres.url"
	case stateProtocolViolation:
		e.Class = Configuration
		e.Problem = "something between here and PostgreSQL, probably a connection pooler, refuses the connection"
		e.Next = "connect directly to PostgreSQL, not through PgBouncer or another pooler"
	case stateTooManyConnections, stateCannotConnectNow, stateAdminShutdown, stateCrashShutdown, "":
		// heals by itself, or is the network
	default:
		if !strings.HasPrefix(state, "08") && !strings.HasPrefix(state, "57") {
			e.Class = Unexpected
		}
	}
	return e
}

// queryError classifies what a statement came back with.
func queryError(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, err)
	}
	e := &CheckError{Check: "query", Problem: "cannot " + what, Err: err}
	state := SQLState(err)
	switch state {
	case stateNoPrivilege:
		e.Class = Privilege
		e.Next = "run `cdc-relay init --print` and let a DBA run the grants it shows"
	case stateUndefinedTable:
		e.Class = Configuration
		e.Next = "run `cdc-relay migrate up`"
	case stateQueryCanceled, stateLockNotAvailable, stateTooManyConnections, stateAdminShutdown, stateCrashShutdown,
		stateCannotConnectNow, stateIdleSessionTimeout, "":
		e.Class = Unreachable
	default:
		if strings.HasPrefix(state, "08") {
			e.Class = Unreachable
		}
	}
	return e
}
