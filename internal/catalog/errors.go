package catalog

import (
	"context"
	"crypto/x509"
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
	// Gap says that while the fault lasts the stream lacks rows of configured
	// tables, without a word from the server.
	Gap bool
	Err error // the cause, when there is one; never contains a secret
}

// Error returns problem, cause and next step in one line.
func (e *CheckError) Error() string {
	var b strings.Builder
	b.WriteString(e.Problem)
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(oneLine.Replace(e.Err.Error()))
	}
	if e.Next != "" {
		b.WriteString("; next: ")
		b.WriteString(e.Next)
	}
	return b.String()
}

// oneLine joins what the driver writes on a line per host.
var oneLine = strings.NewReplacer(":\n\t", ": ", "\n\t", ", ", "\n", ", ")

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
	stateProtocolViolation  = "08P01"
	stateInvalidAuth        = "28000"
	stateInvalidPassword    = "28P01"
	stateUnknownDatabase    = "3D000"
	stateNoPrivilege        = "42501"
	stateUndefinedTable     = "42P01"
	stateTooManyConnections = "53300"
	stateLimitExceeded      = "53400"
	stateLockNotAvailable   = "55P03"
	stateQueryCanceled      = "57014"
	stateAdminShutdown      = "57P01"
	stateCannotConnectNow   = "57P03"
)

// SQLState returns the SQLSTATE in the chain of err, or "".
func SQLState(err error) string {
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
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
		Next: "write postgres://user@host:5432/database?sslmode=verify-full, " +
			"with special characters of user and password percent-encoded",
		Class: Configuration,
	}
	// The reason follows the quoted string, which itself may contain anything.
	text := err.Error()
	reason := text[strings.LastIndex(text, quotedStringEnd)+len(quotedStringEnd):]
	for _, p := range connStringProblems {
		if strings.HasPrefix(reason, p.driver) {
			e.Problem += ": " + p.ours
			break
		}
	}
	if cause := errors.Unwrap(err); cause != nil && strings.HasPrefix(reason, tlsReason) {
		e.Problem += ": " + cause.Error() // names a file, or the parameter
		e.Next = "correct sslmode and the files of sslrootcert, sslcert and sslkey"
	}
	return e
}

const (
	quotedStringEnd = "`: "
	strayReason     = "stray password"
	tlsReason       = "failed to configure TLS"
)

var errStrayPassword = errors.New(quotedStringEnd + strayReason)

// connStringProblems maps the driver's fixed texts to ours.
var connStringProblems = []struct{ driver, ours string }{
	{strayReason, "it has an @ in host or database, so a character of the password is probably not percent-encoded"},
	{"failed to parse as URL", "it cannot be read as a URL"},
	{"failed to parse as keyword", "it cannot be read as keyword=value pairs"},
	{"failed to read service", "the service that it names cannot be read (service, PGSERVICE, PGSERVICEFILE)"},
	{tlsReason, "its TLS settings cannot be used (sslmode, sslrootcert, sslcert, sslkey, or PGSSL…)"},
	{"invalid sslcertmode", "its sslcertmode is not known"},
	{"invalid connect_timeout", "its connect_timeout is not a number of seconds"},
	{"invalid port", "its port is not a number from 1 to 65535"},
	{"could not match", "it has another number of ports than of hosts"},
	{"unknown target_session_attrs", "its target_session_attrs is not known"},
	{"unknown channel_binding", "its channel_binding is not known"},
	{"invalid require_auth", "its require_auth is not known"},
}

// connectError classifies what a connection attempt came back with.
func connectError(err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	e := &CheckError{Check: "connection", Problem: "cannot connect to PostgreSQL", Err: err}
	state := SQLState(err)
	switch state {
	case stateInvalidPassword, stateInvalidAuth:
		e.Class = Privilege
		e.Next = "check user, password and client certificate (postgres.url, postgres.password_file, sslcert) and the server's pg_hba.conf"
	case stateNoPrivilege:
		e.Class = Privilege
		e.Next = "as the owner of the database: " + grantConnect(err)
	case stateUnknownDatabase:
		e.Class = Configuration
		e.Next = "name an existing database in postgres.url"
	case stateProtocolViolation:
		e.Class = Configuration
		e.Next = "connect directly to PostgreSQL: a connection pooler in between seems to refuse the connection"
	case "":
		e.Class, e.Next = networkFault(err)
	default:
		e.Class, e.Next = classOf(state), "see the server's log"
	}
	return e
}

// grantConnect is the statement that lets the role of the attempt connect.
func grantConnect(err error) string {
	role, database := "…", "…"
	if attempt, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		role, database = ident(attempt.Config.User), ident(attempt.Config.Database)
	}
	return "GRANT CONNECT ON DATABASE " + database + " TO " + role
}

// networkFault tells a TLS fault, which does not heal, from a network that does.
func networkFault(err error) (Class, string) {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority), errors.As(err, &host), errors.As(err, &invalid):
		return Configuration, "check sslrootcert and the host name in postgres.url against the server's certificate"
	case strings.Contains(err.Error(), "remote error: tls"): // a TLS alert; its type is not exported
		return Privilege, "check sslcert and sslkey in postgres.url: the server does not accept the client's certificate"
	case strings.Contains(err.Error(), "server refused TLS connection"): // the driver has no type for it
		return Configuration, "switch TLS on in the server (ssl = on), or set another sslmode in postgres.url"
	}
	return Unreachable, "check host and port in postgres.url and that the server runs"
}

// classOf is the class of what any statement may come back with.
func classOf(state string) Class {
	switch state {
	case stateNoPrivilege:
		return Privilege
	case stateUndefinedTable, stateLimitExceeded:
		return Configuration
	case "", stateQueryCanceled, stateLockNotAvailable, stateTooManyConnections:
		return Unreachable
	}
	// 08: connection lost; 57P: shutting down, starting, or the session was ended.
	if strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") {
		return Unreachable
	}
	return Unexpected
}

// Explain classifies what a statement came back with, as every method of [DB]
// does; what says what it was for, such as "read slot x". It is for SQL that other
// packages run over a connection of [Connect].
func Explain(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, err)
	}
	state := SQLState(err)
	e := &CheckError{Check: "query", Problem: "cannot " + what, Class: classOf(state), Err: err}
	switch state {
	case stateNoPrivilege:
		e.Next = "run `cdc-relay init --print` and let a DBA run the grants that it shows"
	case stateUndefinedTable:
		e.Next = "run `cdc-relay migrate up`"
	default:
		e.Next = hint(err)
	}
	return e
}

// hint is the server's own advice, if it gives any.
func hint(err error) string {
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pe.Hint
	}
	return ""
}
