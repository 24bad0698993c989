package config

import (
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strconv"
	"strings"
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

// withPassword returns the connection string with the given password instead of its own: of a
// parameter or keyword given twice the last one counts, and a parameter counts more than what stands
// before the @, in libpq and in pgx.
func (s ConnString) withPassword(password string) ConnString {
	_, _, tail, ok := s.splitURL()
	if !ok {
		quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password)
		return ConnString(strings.TrimSpace(string(s) + " password='" + quoted + "'"))
	}
	separator := "?"
	if strings.Contains(tail, "?") {
		separator = "&"
	}
	// A space must be %20: for libpq and pgx a plus is a plus.
	return s + ConnString(separator+"password="+strings.ReplaceAll(url.QueryEscape(password), "+", "%20"))
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

// Names is a list that may also be written as one text with commas between the names. A comma
// inside double quotes belongs to its name, as in SQL.
type Names []string

// UnmarshalText splits the text at its commas and drops the space around names.
func (n *Names) UnmarshalText(text []byte) error {
	quoted := false
	parts := strings.FieldsFunc(string(text), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})
	*n = nil
	for _, part := range parts {
		if part = strings.TrimSpace(part); part != "" {
			*n = append(*n, part)
		}
	}
	return nil
}

// String gives the names with commas between them.
func (n Names) String() string { return strings.Join(n, ", ") }
