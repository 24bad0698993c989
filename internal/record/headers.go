package record

import (
	"bytes"
	"encoding/json"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// rowHeaders appends the headers that a row asks for: a JSON object whose strings
// go out bare and whose other values go out as the JSON text they are. Anything
// else is counted and passed over.
func (m *Mapper) rowHeaders(out []publish.Header, text []byte, reserved map[string]struct{}) []publish.Header {
	if !json.Valid(text) {
		m.malformed.Add(1)
		return out
	}
	s := scanner{rest: text}
	if s.next() != '{' {
		m.malformed.Add(1)
		return out
	}
	for s.skip(1); s.next() != '}'; {
		name := m.names.intern(m.bare(s.value()))
		s.next()
		s.skip(1) // The colon.
		s.next()
		value := s.value()
		if s.next() == ',' {
			s.skip(1)
		}
		if _, own := reserved[name]; own || alwaysReserved(name) {
			m.reserved.Add(1)
			continue
		}
		if value[0] == '"' {
			value = m.bare(value)
		}
		out = append(out, publish.Header{Name: name, Value: value})
	}
	return out
}

// bare returns what a JSON string stands for.
func (m *Mapper) bare(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return inner // Not reached: the text is valid JSON.
	}
	start := len(m.buf)
	m.buf = append(m.buf, s...)
	return m.buf[start:len(m.buf):len(m.buf)]
}

// scanner walks a text that is known to be valid JSON, which is why it need not
// check anything, and does not allocate.
type scanner struct{ rest []byte }

// next passes over white space and returns the byte that follows, 0 at the end.
func (s *scanner) next() byte {
	for i, c := range s.rest {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			s.rest = s.rest[i:]
			return c
		}
	}
	s.rest = nil
	return 0
}

func (s *scanner) skip(n int) { s.rest = s.rest[min(n, len(s.rest)):] }

// value takes one value, as written.
func (s *scanner) value() []byte {
	n := 0
	switch s.rest[0] {
	case '"':
		n = stringEnd(s.rest)
	case '{', '[':
		n = nestedEnd(s.rest)
	default:
		if n = bytes.IndexAny(s.rest, ",}] \t\n\r"); n < 0 {
			n = len(s.rest)
		}
	}
	v := s.rest[:n:n]
	s.rest = s.rest[n:]
	return v
}

// stringEnd returns the length of the string that text begins with, quotes included.
func stringEnd(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// nestedEnd returns the length of the object or array that text begins with.
func nestedEnd(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i += stringEnd(text[i:]) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(text)
}
