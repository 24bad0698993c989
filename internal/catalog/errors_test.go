package catalog

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// secret has every kind of character that URLs and keyword/value strings treat in
// a special way.
const secret = `S3cr3t/?#[]@:%&'"\ =pa`

// leak returns what of the secret is in text, as it is or percent-encoded.
func leak(text string) string {
	for _, s := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), "S3cr3t"} {
		if strings.Contains(text, s) {
			return s
		}
	}
	return ""
}

// everything is all that a careless caller could print of an error.
func everything(err error) string {
	var b strings.Builder
	for ; err != nil; err = errors.Unwrap(err) {
		fmt.Fprintf(&b, "%v\n%+v\n%q\n", err, err, err.Error())
	}
	return b.String()
}

func TestConnStringErrors(t *testing.T) {
	enc := url.QueryEscape(secret)
	for name, c := range map[string]struct{ connString, want string }{
		"raw in url":          {"postgres://u:" + secret + "@127.0.0.1:1/db", "not a valid connection string"},
		"bad escape":          {"postgres://u:S3cr3t%zz@127.0.0.1:1/db", "cannot be read as a URL"},
		"bad port":            {"postgres://u:" + enc + "@127.0.0.1:x/db", "its port"},
		"slash in password":   {"postgres://u:S3cr3t/x@127.0.0.1/db", "its port"},
		"bad sslmode":         {"postgres://u:" + enc + "@h/db?sslmode=S3cr3t", "its TLS settings"},
		"missing ca":          {"postgres://u:" + enc + "@h/db?sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "open /nowhere/ca.pem: "},
		"bad parameter":       {"postgres://h/db?password=" + enc + "&connect_timeout=S3cr3t", "its connect_timeout"},
		"bad attrs":           {"postgres://u:S3cr3t&target_session_attrs=S3cr3t@h/db?target_session_attrs=S3cr3t", "its target_session_attrs"},
		"at in password":      {"postgres://u:x@S3cr3t@127.0.0.1/db", "percent-encoded"},
		"slash after digits":  {"postgres://u:1/S3cr3t@127.0.0.1/db", "percent-encoded"},
		"unquoted value":      {"host=h password=S3cr3t more S3cr3t", "keyword=value"},
		"space around equals": {"host=h password = S3cr3t port = x", "its port"},
		"two ports":           {"host=a,b,c port=1,2 password=S3cr3t", "number of ports"},
		"no service":          {"service=S3cr3t servicefile=/nowhere password=S3cr3t", "the service"},
		"other scheme":        {"postgres//u:S3cr3t@h/db", "keyword=value"},
		"quote in text":       {"host=h password='S3cr3t`: S3cr3t", "not a valid connection string"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Connect(t.Context(), Config{ConnString: c.connString})
			var e *CheckError
			if !errors.As(err, &e) {
				t.Fatalf("Connect() = %v, want a *CheckError", err)
			}
			if e.Class != Configuration || e.Next == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Connect() = %v (%s), want a configuration error with %q and a next step", err, e.Class, c.want)
			}
			if s := leak(everything(err)); s != "" {
				t.Errorf("the error shows %q: %s", s, everything(err))
			}
		})
	}
}

func TestConnectErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	enc := url.QueryEscape(secret)
	for _, cfg := range []Config{
		{ConnString: "postgres://u:" + enc + "@" + addr + "/db"},
		{ConnString: "postgres://u@" + addr + "/db?password=" + enc},
		{ConnString: "postgres://u@" + addr + "/db", Password: secret},
		{ConnString: "postgres://u:" + enc + "@" + addr + "," + addr + "/db?sslmode=disable"},
		{ConnString: "postgres://u:" + enc + "@nowhere.invalid/db"},
	} {
		_, err := Open(t.Context(), cfg)
		var e *CheckError
		if !errors.As(err, &e) || e.Class != Unreachable || !e.Transient() || e.Next == "" {
			t.Errorf("Open() = %v, want an unreachable error with a next step", err)
		}
		if s := leak(everything(err)); s != "" {
			t.Errorf("the error shows %q: %v", s, err)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("the error has several lines: %q", err)
		}
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	pg := func(code string) error {
		return fmt.Errorf("wrapped: %w", &pgconn.PgError{Severity: "FATAL", Code: code, Message: "m", Hint: "do it"})
	}
	for _, c := range []struct {
		name string
		err  error
		want Class
	}{
		{"wrong password", connectError(pg("28P01")), Privilege},
		{"no hba line", connectError(pg("28000")), Privilege},
		{"no connect right", connectError(pg("42501")), Privilege},
		{"unknown database", connectError(pg("3D000")), Configuration},
		{"pooler", connectError(pg("08P01")), Configuration},
		{"too many connections", connectError(pg("53300")), Unreachable},
		{"starting", connectError(pg("57P03")), Unreachable},
		{"unknown state at connect", connectError(pg("XX000")), Unexpected},
		{"certificate", connectError(&tls.CertificateVerificationError{Err: x509.HostnameError{Certificate: &x509.Certificate{}}}), Configuration},
		{"certificate with verify-ca", connectError(fmt.Errorf("x: %w", x509.UnknownAuthorityError{})), Configuration},
		{"client certificate", connectError(errors.New("remote error: tls: bad certificate")), Privilege},
		{"no tls", connectError(errors.New("server refused TLS connection")), Configuration},
		{"network", connectError(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}), Unreachable},
		{"no right", Explain("read x", pg("42501")), Privilege},
		{"no table", Explain("read x", pg("42P01")), Configuration},
		{"no slot left", Explain("read x", pg("53400")), Configuration},
		{"terminated", Explain("read x", pg("57P01")), Unreachable},
		{"idle session", Explain("read x", pg("57P05")), Unreachable},
		{"too slow", Explain("read x", pg("57014")), Unreachable},
		{"connection lost", Explain("read x", pg("08006")), Unreachable},
		{"lost without a word", Explain("read x", fmt.Errorf("unexpected EOF")), Unreachable},
		{"deadline", Explain("read x", context.DeadlineExceeded), Unreachable},
		{"bug", Explain("read x", pg("42601")), Unexpected},
	} {
		var e *CheckError
		if !errors.As(c.err, &e) || e.Class != c.want {
			t.Errorf("%s: %v, want class %s", c.name, c.err, c.want)
		}
	}
	if err := Explain("read x", context.Canceled); !errors.Is(err, context.Canceled) || errors.As(err, new(*CheckError)) {
		t.Errorf("Explain(context.Canceled) = %v, want the context's error and no judgement", err)
	}
	if got, want := Explain("read x", pg("42601")).Error(), "cannot read x: wrapped: FATAL: m (SQLSTATE 42601); next: do it"; got != want {
		t.Errorf("Explain() = %q, want %q", got, want)
	}
	if !Terminated(pg("57P01")) || Terminated(pg("57P03")) || !Refused(pg("57P03")) || Refused(errors.New("x")) {
		t.Error("Terminated and Refused must tell 57P01 from 57P03")
	}
	for class, want := range map[Class]int{Unexpected: 1, Unreachable: 69, Privilege: 77, Configuration: 78} {
		if got := class.ExitCode(); got != want {
			t.Errorf("%s.ExitCode() = %d, want %d", class, got, want)
		}
	}
}
