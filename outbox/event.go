package outbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrInvalid is wrapped by the error for an event that cannot be written as it is. Nothing has been sent to the
// database then, and the transaction can go on.
var ErrInvalid = errors.New("event refused")

// Event is one row of the outbox, and becomes one record. Empty strings and zero numbers are written as NULL, that is,
// they make no header.
type Event struct {
	// ID tells copies of a message from other messages: consumers claim it. Default: [NewID]. The column of the default
	// table is a uuid.
	ID string
	// AggregateType is the kind of thing that the event is about. By default it names the topic. Needed.
	AggregateType string
	// AggregateID is which thing. By default it is the record's key: events of one key keep the order in which their
	// transactions committed. Empty: the event has no order towards others.
	AggregateID string
	// AggregateVersion numbers the events of an aggregate, 1, 2, 3 and so on, for consumers that check the sequence
	// (package inbox, Sequence). 0: none.
	AggregateVersion int64
	// Type is what happened. Needed.
	Type string
	// SchemaVersion is that of the payload.
	SchemaVersion string
	// CorrelationID is common to all messages of one business operation.
	CorrelationID string
	// CausationID is the ID of the message that this one answers.
	CausationID string
	// Payload is the record's value, and is handed to the column as it is. It must be JSON if the column is json or
	// jsonb, as that of the default table is. nil is NULL, a tombstone.
	Payload []byte
	// Headers are further headers of the record. The names that the relay sets itself are refused.
	Headers map[string]string
}

// Names of fields, as outbox.columns of the relay's configuration has them.
const (
	fieldID               = "id"
	fieldAggregateType    = "aggregatetype"
	fieldAggregateID      = "aggregateid"
	fieldType             = "type"
	fieldPayload          = "payload"
	fieldHeaders          = "headers"
	fieldAggregateVersion = "aggregateversion"
	fieldCorrelationID    = "correlationid"
	fieldCausationID      = "causationid"
	fieldSchemaVersion    = "schemaversion"
	fieldTraceparent      = "traceparent"
	fieldTracestate       = "tracestate"
	fieldBaggage          = "baggage"
)

// row is an event as values of columns, by field. A field that is NULL is not in it.
type row map[string]any

// row checks the event and returns it as a row.
func (w *Writer) row(e *Event, trace map[string]string) (row, error) {
	r := row{}
	for _, f := range []struct {
		name, value string
		needed      bool
	}{
		{fieldID, e.ID, true},
		{fieldAggregateType, e.AggregateType, w.columns[fieldAggregateType] != ""},
		{fieldAggregateID, e.AggregateID, false},
		{fieldType, e.Type, w.columns[fieldType] != ""},
		{fieldSchemaVersion, e.SchemaVersion, false},
		{fieldCorrelationID, e.CorrelationID, false},
		{fieldCausationID, e.CausationID, false},
	} {
		switch {
		case f.value == "" && f.needed:
			return nil, fmt.Errorf("%w: it has no %s", ErrInvalid, f.name)
		case f.value == "":
			continue
		case !storable(f.value):
			return nil, fmt.Errorf("%w: %s is no text that Postgres stores (UTF-8 without NUL)", ErrInvalid, f.name)
		}
		r[f.name] = f.value
	}
	if e.AggregateVersion != 0 {
		r[fieldAggregateVersion] = e.AggregateVersion
	}
	if e.Payload != nil {
		r[fieldPayload] = e.Payload
	}
	if err := w.addHeaders(r, e.Headers, trace); err != nil {
		return nil, err
	}
	for name := range r {
		if w.columns[name] == "" {
			return nil, fmt.Errorf("%w: it has a value for %s, and the table has no column for that", ErrInvalid, name)
		}
	}
	return r, nil
}

// addHeaders sets the headers, and the trace context where it belongs: into its columns, or among the headers.
func (w *Writer) addHeaders(r row, given, trace map[string]string) error {
	all := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		switch {
		case name == "":
			return fmt.Errorf("%w: a header has no name", ErrInvalid)
		case w.reserved(name):
			return fmt.Errorf("%w: header %q is set by the relay: %s", ErrInvalid, name, instead(name))
		case !storable(name) || !storable(given[name]):
			return fmt.Errorf("%w: header %q is no text that Postgres stores (UTF-8 without NUL)", ErrInvalid, name)
		}
		all[name] = given[name]
	}
	// A context that the caller has set himself, from a message say, is one; the two must not be mixed.
	_, own := given[fieldTraceparent]
	for name, value := range trace {
		_, set := all[name]
		switch {
		case w.columns[name] != "":
			r[name] = value
		case w.columns[fieldHeaders] != "" && !own && !set:
			all[name] = value
		}
	}
	if len(all) == 0 {
		return nil
	}
	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("%w: headers: %w", ErrInvalid, err)
	}
	r[fieldHeaders] = string(text)
	return nil
}

// reserved reports whether the relay drops a row's own header of this name (docs/records.md).
func (w *Writer) reserved(name string) bool {
	switch name {
	case fieldID, fieldType:
		return true
	case "content-type":
		return !w.ownContentType
	case fieldAggregateVersion, fieldCorrelationID, fieldCausationID, fieldSchemaVersion, fieldTraceparent, fieldTracestate, fieldBaggage:
		return w.columns[name] != ""
	}
	return strings.HasPrefix(name, "cdc-relay-") || slices.Contains(w.more, name)
}

// instead says what to do about a reserved header.
func instead(name string) string {
	return cmp.Or(map[string]string{
		fieldID:               "use Event.ID",
		fieldType:             "use Event.Type",
		fieldAggregateVersion: "use Event.AggregateVersion",
		fieldCorrelationID:    "use Event.CorrelationID",
		fieldCausationID:      "use Event.CausationID",
		fieldSchemaVersion:    "use Event.SchemaVersion",
		fieldTraceparent:      "use the context",
		fieldTracestate:       "use the context",
		fieldBaggage:          "use the context",
		"content-type":        "it follows from the column's type",
	}[name], "choose another name")
}

// storable reports whether a text column, and the strings of jsonb, take the text.
func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
