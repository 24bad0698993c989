package config

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/record"
)

const redacted = "[redacted]"

// Secret is text that is never shown: every formatting verb gives a placeholder.
type Secret string

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// ConnString is a Postgres connection string, shown without its password.
type ConnString string

var (
	// passwordPair finds a password among keyword=value pairs, quoted or not.
	passwordPair = regexp.MustCompile(`\b(password|sslpassword)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)`)
	// passwordParameter finds a password in the query of a URL.
	passwordParameter = regexp.MustCompile(`([?&](?:ssl)?password)=[^&]*`)
)

// String gives the connection string with every password replaced.
func (s ConnString) String() string {
	scheme, user, tail, ok := s.splitURL()
	if !ok {
		return passwordPair.ReplaceAllString(string(s), "$1="+redacted)
	}
	if name, _, found := strings.Cut(user, ":"); found {
		user = name + ":" + redacted + "@"
	}
	return scheme + user + passwordParameter.ReplaceAllString(tail, "$1="+redacted)
}

// GoString hides the password from %#v.
func (s ConnString) GoString() string { return strconv.Quote(s.String()) }

// splitURL cuts a URL behind its scheme and behind the @ of its user, as libpq does: what comes
// before the first @ is the user and the password, unless a slash comes first. (net/url refuses
// passwords that libpq and pgx accept.)
func (s ConnString) splitURL() (scheme, user, tail string, ok bool) {
	before, tail, ok := strings.Cut(string(s), "://")
	if i := strings.IndexAny(tail, "@/"); i >= 0 && tail[i] == '@' {
		user, tail = tail[:i+1], tail[i+1:]
	}
	return before + "://", user, tail, ok
}

// Bytes is a size: a whole number of bytes, or one with a binary unit (KiB, MiB, GiB).
type Bytes int64

var byteUnits = []struct {
	suffix string
	factor int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

// UnmarshalText reads "1048576", "1024KiB" or "1 MiB".
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	for _, unit := range byteUnits {
		digits, ok := strings.CutSuffix(s, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/unit.factor {
			break
		}
		*b = Bytes(n * unit.factor)
		return nil
	}
	return fmt.Errorf("%q is not a size: write bytes, or a whole number of KiB, MiB or GiB", s)
}

// String gives the largest unit that divides the size.
func (b Bytes) String() string {
	for _, unit := range byteUnits {
		if b != 0 && int64(b)%unit.factor == 0 && unit.factor > 1 {
			return strconv.FormatInt(int64(b)/unit.factor, 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Names is a list of names that may also be written as one text with commas between them.
type Names []string

// UnmarshalText splits the text at its commas.
func (n *Names) UnmarshalText(text []byte) error {
	*n = splitList(string(text))
	return nil
}

// String gives the names with commas between them.
func (n Names) String() string { return strings.Join(n, ", ") }

// Tables is a list of tables that may also be written as one text with commas between them.
type Tables []Table

// UnmarshalText splits the text at its commas and reads each name as SQL does.
func (t *Tables) UnmarshalText(text []byte) error {
	*t = nil
	for _, name := range splitList(string(text)) {
		var table Table
		if err := table.UnmarshalText([]byte(name)); err != nil {
			return err
		}
		*t = append(*t, table)
	}
	return nil
}

// String gives the tables with commas between them.
func (t Tables) String() string {
	names := make([]string, len(t))
	for i, table := range t {
		names[i] = table.String()
	}
	return strings.Join(names, ", ")
}

// names returns the tables as package catalog knows them.
func (t Tables) names() []catalog.TableName {
	names := make([]catalog.TableName, len(t))
	for i, table := range t {
		names[i] = table.TableName
	}
	return names
}

// record returns the tables as package record knows them.
func (t Tables) record() []record.Table {
	names := make([]record.Table, len(t))
	for i, table := range t {
		names[i] = record.Table(table.TableName)
	}
	return names
}

// Table is the name of a table, written as in SQL.
type Table struct{ catalog.TableName }

// UnmarshalText reads the name as SQL does.
func (t *Table) UnmarshalText(text []byte) (err error) {
	t.TableName, err = catalog.ParseTableName(string(text))
	return err
}

// splitList cuts text at its commas, drops the space around each part and drops empty parts. A
// comma inside double quotes belongs to its name, as in SQL.
func splitList(text string) (parts []string) {
	quoted := false
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	}) {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}
