package record

// These bound the strings that are kept. Topics and header names are few and short; a
// template or an application that makes up new ones for ever costs an allocation a
// row, not memory.
const (
	maxInterned      = 1024
	maxInternedBytes = 256
)

// interner keeps one string for equal bytes.
type interner map[string]string

// intern returns b as a string, without allocating when it has seen it before.
func (n interner) intern(b []byte) string {
	if s, ok := n[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(b) > maxInternedBytes {
		return s
	}
	if len(n) == maxInterned {
		clear(n)
	}
	n[s] = s
	return s
}
