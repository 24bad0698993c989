package record

import (
	"errors"
	"fmt"
	"strings"
)

// part is a piece of a template: literal text, or a field when field is not empty.
type part struct{ text, field string }

var errBraces = errors.New("unbalanced brace")

// parseTemplate splits text into literals and {field}s; {{ and }} are braces.
// Neighbouring literals are one part, and no part is empty.
func parseTemplate(text string) ([]part, error) {
	var parts []part
	var literal strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if (c == '{' || c == '}') && strings.HasPrefix(text[i+1:], string(c)) {
			i++
			literal.WriteByte(c)
			continue
		}
		switch c {
		case '}':
			return nil, fmt.Errorf("} at byte %d: %w", i+1, errBraces)
		case '{':
			field, _, found := strings.Cut(text[i+1:], "}")
			if !found || strings.Contains(field, "{") {
				return nil, fmt.Errorf("{ at byte %d: %w", i+1, errBraces)
			}
			if field == "" {
				return nil, fmt.Errorf("{} at byte %d names no field", i+1)
			}
			if literal.Len() > 0 {
				parts = append(parts, part{text: literal.String()})
				literal.Reset()
			}
			parts = append(parts, part{field: field})
			i += 1 + len(field)
		default:
			literal.WriteByte(c)
		}
	}
	if literal.Len() > 0 {
		parts = append(parts, part{text: literal.String()})
	}
	return parts, nil
}
