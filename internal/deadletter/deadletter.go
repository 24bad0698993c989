// Package deadletter keeps the rows that could not be published: in the source
// database, in the table public.cdc_relay_dead_letter, one row for each, with
// everything that it takes to publish them later.
//
// A row is a dead letter once [Put] has returned. The statement that writes it
// also writes a marker to the write-ahead log, and the relay may confirm the row's
// position once that marker has come back on its stream: then the dead letter is
// wherever the confirmed position is, whatever server that turns out to be.
//
// [Replay] only marks a dead letter and tells the relay so, through another logical
// message that holds no more than numbers. What is published comes out of the
// table; so whoever forges such a message can at worst repeat a replay that was
// asked for.
//
// The package neither publishes nor decides what is a dead letter.
package deadletter

import (
	"time"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

// Reason says, in one word, why a row could not be published. It is a column and a
// label of metrics.
type Reason string

// The reasons.
const (
	TooLarge         Reason = "too_large"         // the broker, or kafka.max_request_bytes, does not take a record of its size
	InvalidRecord    Reason = "invalid_record"    // the broker refuses the record, as one without key on a compacted topic
	InvalidTimestamp Reason = "invalid_timestamp" // the broker refuses the record's time
	InvalidTopic     Reason = "invalid_topic"     // no topic can have the name
	InvalidRow       Reason = "invalid_row"       // the row cannot be turned into a record
	UnknownTopic     Reason = "unknown_topic"     // the topic did not exist for too long
	Attempts         Reason = "attempts"          // too many attempts have failed
	ValueGone        Reason = "value_gone"        // a replay whose value is neither kept nor in the outbox table
)

// State says what has become of a dead letter.
type State string

// The states.
const (
	Dead      State = "dead"      // waits for a decision
	Replayed  State = "replayed"  // given back to the relay
	Discarded State = "discarded" // given up by somebody
)

// Those that only a consumer's have (package inboxdb), besides Dead and Discarded.
const (
	Parked    State = "parked"    // waits behind another, or for an earlier one
	Due       State = "due"       // given back to the consumer's runner
	Processed State = "processed" // which has handled it
)

// Header is one record header.
type Header struct {
	Name  string // any bytes
	Value []byte // nil is a null value
}

// Letter is one dead letter.
type Letter struct {
	ID             int64
	Slot, SystemID string
	Position       position.Position // of the row; unique with Slot and SystemID
	State          State

	Table      string // that the row was inserted into, as SQL spells it
	MessageID  []byte // as on the stream
	Topic      string // "" when there is none
	Key, Value []byte // nil is a null one; Value is nil, too, when it was not kept
	ValueBytes int64  // length of the value, -1 for a null one
	ValueKept  bool
	Headers    []Header
	Type       string // kind of event, for people: value of the header type

	RecordTime, CommitTime time.Time

	Reason                  Reason
	Error                   string
	Attempts                int // to publish it that have failed, over all replays
	FirstFailed, LastFailed time.Time
	MayBePublished          bool  // an attempt ended without an answer
	Ordinal                 int64 // how many rows had been decided when it was written

	Marker       string // content of the logical message that was written with it
	Replays      int
	ReplayTopic  string // where its last replay goes, "" for Topic
	ReplayMarker string // Marker of its last replay that was refused

	Created, Changed time.Time
}

// Prefixes of the logical messages.
const (
	MarkerPrefix = "cdc-relay/dead"
	ReplayPrefix = "cdc-relay/replay"
)
