package outbox

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// parseTable reads name or schema.name as SQL does, and as the relay reads outbox.table.
func parseTable(s string) (pgx.Identifier, error) {
	first, rest, err := cutName(s)
	if err == nil && rest == "" {
		return pgx.Identifier{"public", first}, nil
	}
	var second string
	if err == nil && rest[0] == '.' {
		second, rest, err = cutName(rest[1:])
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("table %q: %w", s, err)
	case rest != "":
		return nil, fmt.Errorf("table %q: unexpected %q; write schema.table", s, rest)
	}
	return pgx.Identifier{first, second}, nil
}

// cutName takes one name off the front of s.
func cutName(s string) (name, rest string, err error) {
	if strings.HasPrefix(s, `"`) {
		name, rest, err = cutQuoted(s[1:])
	} else {
		end := strings.IndexAny(s, `."`)
		if end < 0 {
			end = len(s)
		}
		name, rest = strings.ToLower(s[:end]), s[end:]
	}
	switch {
	case err != nil:
		return "", "", err
	case name == "":
		return "", "", errors.New("a name is missing")
	case !storable(name):
		return "", "", errors.New("a name is no text that Postgres stores (UTF-8 without NUL)")
	}
	return name, rest, nil
}

// cutQuoted takes a name and its closing quote off the front of s.
func cutQuoted(s string) (name, rest string, err error) {
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '"':
		case strings.HasPrefix(s[i+1:], `"`):
			i++
		default:
			return strings.ReplaceAll(s[:i], `""`, `"`), s[i+1:], nil
		}
	}
	return "", "", errors.New("a quote is not closed")
}
