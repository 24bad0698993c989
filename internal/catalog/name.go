package catalog

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// maxNameBytes is the length of a PostgreSQL identifier in a default build
// (NAMEDATALEN - 1).
const maxNameBytes = 63

// TableName is a table's exact schema and name, as in pg_class, without quotes.
type TableName struct {
	Schema, Name string
}

// String returns the name in SQL spelling, quoted only where SQL needs it.
func (t TableName) String() string { return spell(t.Schema) + "." + spell(t.Name) }

// Quoted returns the name as it goes into a statement, always quoted.
func (t TableName) Quoted() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

var plainIdentifier = regexp.MustCompile(`^[a-z_][a-z0-9_$]*$`)

// spell quotes an identifier unless it reads the same without quotes. A reserved
// word stays bare: the result is for people, statements use Quoted.
func spell(name string) string {
	if plainIdentifier.MatchString(name) {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}

// ParseTableName reads a table name as SQL does: unquoted parts are folded to
// lower case, quoted parts are taken as they are with "" for a quote, and the
// schema is public when it is left out.
func ParseTableName(s string) (TableName, error) {
	first, rest, err := identifier(s)
	if err != nil {
		return TableName{}, fmt.Errorf("read table name %q: %w", s, err)
	}
	if rest == "" {
		return TableName{Schema: "public", Name: first}, nil
	}
	if rest[0] != '.' {
		return TableName{}, fmt.Errorf("read table name %q: unexpected %q; write schema.table", s, rest)
	}
	second, rest, err := identifier(rest[1:])
	if err != nil {
		return TableName{}, fmt.Errorf("read table name %q: %w", s, err)
	}
	if rest != "" {
		return TableName{}, fmt.Errorf("read table name %q: unexpected %q; write schema.table", s, rest)
	}
	return TableName{Schema: first, Name: second}, nil
}

// identifier takes one identifier, and the blanks around it, off the front of s.
func identifier(s string) (name, rest string, err error) {
	s = strings.TrimLeft(s, " \t\r\n")
	if strings.HasPrefix(s, `"`) {
		name, rest, err = quotedIdentifier(s[1:])
	} else {
		name, rest = bareIdentifier(s)
	}
	rest = strings.TrimLeft(rest, " \t\r\n")
	switch {
	case err != nil:
		return "", "", err
	case name == "":
		return "", "", fmt.Errorf("a name is missing")
	case strings.ContainsRune(name, 0):
		return "", "", fmt.Errorf("a name contains a zero byte")
	case len(name) > maxNameBytes:
		return "", "", fmt.Errorf("a name is longer than %d bytes", maxNameBytes)
	}
	return name, rest, nil
}

func quotedIdentifier(s string) (name, rest string, err error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `"`)
		if !found {
			return "", "", fmt.Errorf("a quote is not closed")
		}
		b.WriteString(before)
		if !strings.HasPrefix(after, `"`) {
			return b.String(), after, nil
		}
		b.WriteByte('"')
		s = after[1:]
	}
}

// bareIdentifier follows the scanner of PostgreSQL: a letter, underscore or any
// byte above ASCII, then also digits and the dollar sign. Only ASCII is folded,
// which is what PostgreSQL does in a multi-byte encoding.
func bareIdentifier(s string) (name, rest string) {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z', c == '_', c >= 0x80:
		case i > 0 && ('0' <= c && c <= '9' || c == '$'):
		default:
			return b.String(), s[i:]
		}
		b.WriteByte(c)
	}
	return b.String(), ""
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// ValidateSlotName reports whether PostgreSQL takes the name for a replication
// slot: 1 to 63 lower-case letters, digits and underscores.
func ValidateSlotName(name string) error {
	if !slotName.MatchString(name) {
		return fmt.Errorf("slot name %q is not valid: use 1 to 63 of a-z, 0-9 and _", name)
	}
	return nil
}

// literal writes s as a SQL string constant, whatever standard_conforming_strings
// says.
func literal(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// ident writes name as a quoted SQL identifier.
func ident(name string) string { return pgx.Identifier{name}.Sanitize() }
