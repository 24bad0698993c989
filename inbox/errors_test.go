package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

func code(c string) error { return fmt.Errorf("query: %w", &pgconn.PgError{Code: c}) }

func TestIsAway(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, row := range []struct {
		err  error
		want bool
	}{
		{code("57P01"), true},
		{code("53300"), true},
		{code("08006"), true},
		{code("25006"), true},
		{code("57014"), false}, // statement_timeout
		{code("42P01"), false},
		{fmt.Errorf("begin: %w", refused), true},
		{fmt.Errorf("commit: %w", io.ErrUnexpectedEOF), true},
		{context.DeadlineExceeded, false},
		// What a handler says of something else is about something else.
		{&handlerError{io.EOF}, false},
		{&handlerError{&url.Error{Op: "Post", URL: "http://billing", Err: refused}}, false},
		{&handlerError{code("53100")}, true},
		{&awayError{io.EOF}, true},
	} {
		if got := isAway(row.err); got != row.want {
			t.Errorf("isAway(%T %v) = %v", row.err, row.err, got)
		}
	}
	if !isConflict(&handlerError{code("40001")}) || !isConflict(code("40P01")) || isConflict(code("23505")) {
		t.Error("a conflict is 40001 or 40P01, and nothing else")
	}
}

func TestSanitise(t *testing.T) {
	m := &Message{Key: []byte("key-of-jane"), Value: []byte(`{"card":"4111"}`)}
	integer := &pgconn.PgError{Severity: "ERROR", Code: "22P02", Message: `invalid input syntax for type integer: "4111"`}
	unique := &pgconn.PgError{Severity: "ERROR", Code: "23505", Message: `duplicate key value violates unique constraint "one"`, ConstraintName: "one"}
	for _, row := range []struct {
		err  error
		want string
	}{
		{errors.New("plain"), "plain"},
		{fmt.Errorf("cannot read %s of %s", m.Value, m.Key), "cannot read … of …"},
		{fmt.Errorf("insert: %w", integer), "insert: SQLSTATE 22P02"},
		{fmt.Errorf("insert: %s: %w", integer.Message, integer), "insert: …: SQLSTATE 22P02"},
		{fmt.Errorf("insert: %w", unique), "insert: SQLSTATE 23505 (constraint one)"},
		{errors.New("a\x00b\nc\xffd"), "a b c\uFFFDd"},
	} {
		if got := sanitise(row.err, m); got != row.want {
			t.Errorf("sanitise(%q) = %q, want %q", row.err, got, row.want)
		}
	}
	long := sanitise(errors.New(strings.Repeat("ä", 2*maxError)), m)
	if len(long) > maxError || !utf8.ValidString(long) {
		t.Errorf("%d bytes, valid %v", len(long), utf8.ValidString(long))
	}
}

func TestMarksOfErrors(t *testing.T) {
	if Permanent(nil) != nil || RetryAfter(nil, 1) != nil {
		t.Error("no error is marked as one")
	}
	if err := fmt.Errorf("more: %w", Permanent(io.EOF)); !isPermanent(err) || !errors.Is(err, io.EOF) {
		t.Error("a mark hides, or is hidden")
	}
}

func TestUsableID(t *testing.T) {
	for _, id := range []string{"0190", strings.Repeat("x", maxID), "ä"} {
		if got := usableID(id); got != id {
			t.Errorf("%q became %q", id, got)
		}
	}
	long := strings.Repeat("x", maxID+1)
	for _, id := range []string{long, "a\x00b", "a\xff"} {
		got := usableID(id)
		if got == id || len(got) > maxID || strings.ContainsRune(got, 0) || !utf8.ValidString(got) || usableID(got) != got {
			t.Errorf("%q became %q", id, got)
		}
	}
	if usableID(long) == usableID(long+"x") {
		t.Error("two long ids are one")
	}
	if _, err := Once(t.Context(), nil, "shipping", ""); err == nil {
		t.Error("no id is claimed")
	}
	if _, err := OnceSQL(t.Context(), nil, "shipping", ""); err == nil {
		t.Error("no id is claimed")
	}
}
