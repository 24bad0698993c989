package position

import (
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
)

// Header is the name of the header that carries the stamp of a record.
const Header = "cdc-relay-position"

// The text form is fixed in width and alphabet, so that there is exactly one
// text for a stamp and the part from the commit on sorts bytewise like Compare.
const (
	formatVersion = '1'
	textLen       = len("1.") + 16 + 1 + 8 + 1 + 16 + 1 + 8 + 1 + 16 + 1 + 16 + 1 + 1 + 1 + 8 + 1 + 16
	hexDigits     = "0123456789abcdef"
)

// ErrVersion is returned by [Parse] for a header of a format that this build does
// not know. Whoever reads it must treat the record as one without a position.
var ErrVersion = errors.New("position header has an unknown format version")

// errFormat does not quote what was read: a header is foreign input.
var errFormat = errors.New("position header is malformed")

// Stamp is a position together with everything that it is valid under.
type Stamp struct {
	// History is the hash of the slot's history id; see [HashHistory].
	History uint64
	// Timeline is that of the server which sent the change.
	Timeline uint32
	// Fingerprint is that of the routing in use; see [Routing.Fingerprint].
	Fingerprint uint64
	// Partitions is the partition count of the topic that placed the record.
	Partitions uint32
	Position
	// IDHash is the hash of the message id; see [HashID].
	IDHash uint64
}

// AppendText appends the header's value to dst. It does not allocate when dst has
// room for 115 bytes.
func (s Stamp) AppendText(dst []byte) []byte {
	dst = append(dst, formatVersion, '.')
	dst = append(appendHex(dst, s.History, 16), '.')
	dst = append(appendHex(dst, uint64(s.Timeline), 8), '.')
	dst = append(appendHex(dst, s.Fingerprint, 16), '.')
	dst = append(appendHex(dst, uint64(s.Partitions), 8), '.')
	dst = append(appendHex(dst, uint64(s.Commit), 16), '.')
	dst = append(appendHex(dst, uint64(s.LSN), 16), '.')
	dst = append(dst, s.Kind.letter(), '.')
	dst = append(appendHex(dst, uint64(s.Index), 8), '.')
	return appendHex(dst, s.IDHash, 16)
}

// String is the header's value.
func (s Stamp) String() string { return string(s.AppendText(make([]byte, 0, textLen))) }

// Parse reads a header's value. It accepts exactly what AppendText writes; the
// error wraps [ErrVersion] for another format version. A caller that cannot parse
// a header knows nothing about the record: it publishes again, it never skips.
func Parse(text []byte) (Stamp, error) {
	if len(text) > 1 && text[0] != formatVersion && text[1] == '.' {
		return Stamp{}, fmt.Errorf("parse position header: %w", ErrVersion)
	}
	if len(text) != textLen || text[0] != formatVersion {
		return Stamp{}, fmt.Errorf("parse position header of %d bytes: %w", len(text), errFormat)
	}
	p := parser{rest: text[1:], ok: true}
	s := Stamp{
		History:     p.hex(16),
		Timeline:    uint32(p.hex(8)),
		Fingerprint: p.hex(16),
		Partitions:  uint32(p.hex(8)),
	}
	s.Commit = pglogrepl.LSN(p.hex(16))
	s.LSN = pglogrepl.LSN(p.hex(16))
	s.Kind = p.kind()
	s.Index = uint32(p.hex(8))
	s.IDHash = p.hex(16)
	if !p.ok {
		return Stamp{}, fmt.Errorf("parse position header: %w", errFormat)
	}
	return s, nil
}

// parser walks a text whose length has been checked; every field follows a dot.
type parser struct {
	rest []byte
	ok   bool
}

func (p *parser) field(width int) []byte {
	if p.rest[0] != '.' {
		p.ok = false
	}
	f := p.rest[1 : 1+width]
	p.rest = p.rest[1+width:]
	return f
}

func (p *parser) hex(width int) uint64 {
	var v uint64
	for _, c := range p.field(width) {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			p.ok = false
		}
	}
	return v
}

func (p *parser) kind() Kind {
	switch p.field(1)[0] {
	case 'm':
		return Message
	case 'r':
		return Row
	default:
		p.ok = false
		return Row
	}
}

func appendHex(dst []byte, v uint64, width int) []byte {
	for shift := 4 * (width - 1); shift >= 0; shift -= 4 {
		dst = append(dst, hexDigits[v>>shift&0xf])
	}
	return dst
}

// HashID hashes a message id (FNV-1a, 64 bits). It tells rows apart that share a
// position in two histories; it is not a defence against forgery.
func HashID(id []byte) uint64 { return fnv1a(id) }

// HashHistory hashes a history id for the header (FNV-1a, 64 bits).
func HashHistory(id string) uint64 { return fnv1a(id) }

func fnv1a[T ~string | ~[]byte](s T) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(s) {
		h ^= uint64(s[i])
		h *= prime
	}
	return h
}
