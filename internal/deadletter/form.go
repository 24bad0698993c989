package deadletter

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// SQLSTATE values that are told apart here.
const (
	stateNoPrivilege       = "42501"
	stateUndefinedTable    = "42P01"
	stateUndefinedColumn   = "42703"
	stateUndefinedFunction = "42883"
	stateUntranslatable    = "22P05"
)

// query is [catalog.Query], with the way on for what the schema lacks.
func query[T any](ctx context.Context, db *catalog.DB, longer time.Duration, what string, scan pgx.RowToFunc[T], sql string, args ...any,
) ([]T, error) {
	var got []T
	var err error
	if longer > 0 {
		got, err = catalog.QueryWithin(ctx, db, longer, what, scan, sql, args...)
	} else {
		got, err = catalog.Query(ctx, db, what, scan, sql, args...)
	}
	return got, explain(db, err)
}

func explain(db *catalog.DB, err error) error { return Explain(err, migrate, grant(db)) }

// Explain adds to an error of a statement what to do about it: where the schema lacks
// something, and where the role lacks a right.
func Explain(err error, missing, denied string) error {
	var e *catalog.CheckError
	if !errors.As(err, &e) {
		return err
	}
	switch catalog.SQLState(err) {
	case stateUndefinedTable, stateUndefinedColumn, stateUndefinedFunction:
		e.Class, e.Next = catalog.Configuration, missing
	case stateNoPrivilege:
		e.Next = denied
	}
	return err
}

const migrate = "run `cdc-relay migrate up` (`cdc-relay migrate print` shows the SQL)"

// grant is the SQL that gives the role its rights.
func grant(db *catalog.DB) string {
	return "as the owner of the schema: GRANT USAGE ON SCHEMA public TO " + ident(db.Role()) + "; " +
		"GRANT SELECT, UPDATE ON public.cdc_relay_slots TO " + ident(db.Role()) + "; " + // what Put locks
		strings.Join(catalog.DeadLetterGrants(db.Role()), "; ")
}

// parameter is how a statement writes its nth argument.
func parameter(n int) string { return "$" + strconv.Itoa(n) }

func ident(name string) string { return pgx.Identifier{name}.Sanitize() }

// bulk is how much longer than another a statement may take that moves so many bytes:
// a second for each 256 KiB, which a line of 5 Mbit/s carries, written in hex.
func bulk[N int | int64](bytes N) time.Duration {
	return time.Duration(bytes) / bulkBytes * time.Second
}

const bulkBytes = 256 << 10

// maxText is how many characters are kept of a text that is for people.
const maxText = 1000

// clean makes a text that any server takes and any terminal shows: valid UTF-8 without
// control characters, cut to maxText.
func clean(s string) string {
	n := 0
	s = strings.Map(func(r rune) rune {
		n++
		switch {
		case n > maxText:
			return -1
		case unicode.IsControl(r):
			return ' '
		}
		return r // what is not valid UTF-8 comes as U+FFFD
	}, s[:min(len(s), maxText*utf8.UTFMax)])
	return s
}

// ascii is clean for a database that lacks some of the characters.
func ascii(s string) string {
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, clean(s))
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// Times travel as microseconds since 1970: neither the driver nor the settings of the
// session can then misread one of a far year.
func micros(t time.Time) any {
	const year = 365 * 24 * 3600
	if s := t.Unix(); t.IsZero() || s < -6000*year || s > 290_000*year {
		return nil // PostgreSQL has no such time
	}
	return t.UnixMicro()
}

// Moment is the expression for the timestamptz of a parameter with the microseconds since
// 1970 ([time.Time.UnixMicro]).
// It goes by days, which the catalog's connections count in UTC, since intervals are
// multiplied as float8.
func Moment(parameter string) string {
	return strings.ReplaceAll("(timestamptz 'epoch' + $ / 86400000000 * interval '1 day' + $ % 86400000000 * interval '1 microsecond')",
		"$", parameter+"::int8")
}

// MicrosOf is the expression that reads a time back for [TimeOf].
func MicrosOf(column string) string { return "(extract(epoch FROM " + column + ") * 1000000)::int8" }

// TimeOf is the time of what [MicrosOf] gives, the zero time for NULL.
func TimeOf(micros *int64) time.Time {
	if micros == nil {
		return time.Time{}
	}
	return time.UnixMicro(*micros).UTC()
}

// A kind of position has one letter, here and in the header of a record.
const (
	kindMessage = "m"
	kindRow     = "r"
)

func letterOf(k position.Kind) string {
	if k == position.Message {
		return kindMessage
	}
	return kindRow
}

func kindOf(letter string) position.Kind {
	if letter == kindMessage {
		return position.Message
	}
	return position.Row
}
