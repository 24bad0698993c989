package record

// Parts that are fuzzed by themselves.
var (
	AppendBytea   = appendBytea
	ParseTemplate = parseTemplate
)

// Part is a piece of a template.
type Part = part

// Field and Text are its content.
func (p part) Field() string { return p.field }
func (p part) Text() string  { return p.text }
