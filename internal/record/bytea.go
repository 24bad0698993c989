package record

import "encoding/hex"

// appendBytea appends the bytes that PostgreSQL's hex form of a bytea stands for. It
// reports false, and appends nothing, for a text in any other form.
func appendBytea(dst, text []byte) ([]byte, bool) {
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' {
		return dst, false
	}
	out, err := hex.AppendDecode(dst, text[2:])
	if err != nil {
		return dst, false
	}
	if out == nil {
		out = []byte{} // Empty is not NULL.
	}
	return out, true
}
