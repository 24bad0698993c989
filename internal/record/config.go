package record

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

// Table is the exact name of a table, without quotes.
type Table struct{ Schema, Name string }

// String joins the two parts with a dot.
func (t Table) String() string { return t.Schema + "." + t.Name }

// Config says what rows mean and where they go.
type Config struct {
	// Tables are the outbox tables. A row of any other published table is an error,
	// because the table may be an outbox table that was renamed.
	Tables []Table
	// Ignored are published tables whose rows are passed over.
	Ignored []Table
	// Columns maps fields to exact column names. A known field that is not listed is
	// in the column of its own name; other names are fields for the templates only.
	Columns map[string]string
	// HeaderColumns are further columns to send as headers: header to exact column name.
	HeaderColumns map[string]string
	// Topic and Key are templates: text in which {field} stands for the row's value
	// and {{ and }} for a brace. An empty key template gives every record a NULL key.
	Topic, Key string
	// CreatedAt asks for the time of the field created_at as record time, instead of
	// the time of the commit.
	CreatedAt bool
}

// The known fields of a row.
const (
	fieldID            = "id"
	fieldAggregateType = "aggregatetype"
	fieldAggregateID   = "aggregateid"
	fieldType          = "type"
	fieldPayload       = "payload"
	fieldHeaders       = "headers"
	fieldCreatedAt     = "created_at"
	fieldContentType   = "contenttype"
)

// header is a header that the relay itself sends, and the field it comes from.
type header struct{ name, field string }

// ownHeaders lists the headers of every record in their order. A column that is
// absent or NULL sends none.
func ownHeaders() []header {
	return []header{
		{"id", fieldID},
		{"type", fieldType},
		{headerContentType, fieldContentType},
		{"aggregateversion", "aggregateversion"},
		{"correlationid", "correlationid"},
		{"causationid", "causationid"},
		{"schemaversion", "schemaversion"},
		{"traceparent", "traceparent"},
		{"tracestate", "tracestate"},
		{"baggage", "baggage"},
	}
}

const (
	headerContentType = "content-type"
	// reservedPrefix keeps all names of the relay itself, present and future, out of
	// the reach of rows. The position header has it, too.
	reservedPrefix = "cdc-relay-"
)

// alwaysReserved reports whether a row can never set the header. The names of
// other own headers are reserved only for tables that have their columns.
func alwaysReserved(name string) bool {
	return name == "id" || name == "type" || name == position.Header || strings.HasPrefix(name, reservedPrefix)
}

// ConfigError is a setting that makes no sense.
type ConfigError struct {
	Key     string // The setting, such as routing.topic.
	Problem string // What is wrong with it.
	Next    string // What to do.
}

// Error names the setting, the problem and the next step.
func (e *ConfigError) Error() string { return fmt.Sprintf("%s: %s; %s", e.Key, e.Problem, e.Next) }

// Check returns every problem of the configuration.
func (c Config) Check() []*ConfigError {
	var problems []*ConfigError
	add := func(key, next, format string, args ...any) {
		problems = append(problems, &ConfigError{Key: key, Problem: fmt.Sprintf(format, args...), Next: next})
	}
	if len(c.Tables) == 0 {
		add("outbox.table", "name the table, such as public.outbox", "not set")
	}
	for _, name := range slices.Sorted(maps.Keys(c.HeaderColumns)) {
		own := slices.IndexFunc(ownHeaders(), func(h header) bool { return h.name == name })
		switch {
		case name == "" || c.HeaderColumns[name] == "":
			add("outbox.header_columns", "name both", "header %q has column %q", name, c.HeaderColumns[name])
		case own >= 0:
			add("outbox.header_columns", fmt.Sprintf("map the column as field %s under outbox.columns", ownHeaders()[own].field),
				"header %q is one that the relay sends by itself", name)
		case alwaysReserved(name):
			add("outbox.header_columns", "choose another name", "header %q is reserved", name)
		}
	}
	if c.Topic == "" {
		add("routing.topic", "give a template, such as outbox.event.{aggregatetype}", "not set")
	}
	for _, t := range []struct{ key, text string }{{"routing.topic", c.Topic}, {"routing.key", c.Key}} {
		parts, err := parseTemplate(t.text)
		if err != nil {
			add(t.key, "write a field as {name} and a brace as {{ or }}", "template %q: %v", t.text, err)
		}
		for _, p := range parts {
			if p.field != "" && !slices.Contains(c.templateFields(), p.field) {
				add(t.key, "use one of "+strings.Join(c.templateFields(), ", ")+", or add the field under outbox.columns",
					"template %q has the unknown field {%s}", t.text, p.field)
			}
		}
	}
	return problems
}

// templateFields are the fields that a template may use. Payload and headers may
// not: they are contents, which must not get into topic names, errors and metrics.
func (c Config) templateFields() []string {
	fields := []string{fieldID, fieldAggregateType, fieldAggregateID, fieldCreatedAt}
	for _, h := range ownHeaders() {
		fields = append(fields, h.field)
	}
	for field := range c.Columns {
		if field != fieldPayload && field != fieldHeaders {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

// column is the exact name of the column that holds a field.
func (c Config) column(field string) string {
	if column, ok := c.Columns[field]; ok {
		return column
	}
	return field
}

// requiredFields returns the fields that every table must have, in a fixed order: the id,
// the payload and what the templates use.
func (c Config) requiredFields() []string {
	fields := []string{fieldID, fieldPayload}
	for _, text := range []string{c.Topic, c.Key} {
		parts, _ := parseTemplate(text) // Check has parsed it.
		for _, p := range parts {
			if p.field != "" && !slices.Contains(fields, p.field) {
				fields = append(fields, p.field)
			}
		}
	}
	return fields
}

// RequiredColumns returns the exact names of the columns without which the relay
// cannot work: those of the id, the payload and what the templates use.
func (c Config) RequiredColumns() []string {
	var columns []string
	for _, field := range c.requiredFields() {
		if column := c.column(field); !slices.Contains(columns, column) {
			columns = append(columns, column)
		}
	}
	return columns
}

// join makes one error of all problems, nil when there are none.
func join(problems []*ConfigError) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}
