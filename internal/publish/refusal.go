package publish

import "time"

// Labels of the reasons for which a row is refused. They are the values of the column
// reason of the dead letters, and of metrics.
const (
	ReasonTooLarge         = "too_large"
	ReasonInvalidRecord    = "invalid_record"
	ReasonInvalidTimestamp = "invalid_timestamp"
	ReasonInvalidTopic     = "invalid_topic"
	ReasonUnknownTopic     = "unknown_topic"
	ReasonAttempts         = "attempts"
)

// Refusal is a row that cannot be published, or not any more. What it holds is valid
// until Refused returns.
type Refusal struct {
	// Record is the row as it was published, its Headers without the position header.
	Record
	// Reason is one of the labels above.
	Reason string
	// Err is the last failure. It holds nothing of the row's contents.
	Err error
	// Attempts counts the requests that carried the row and failed, the first at First
	// and the last at Last.
	Attempts    int
	First, Last time.Time
	// MayBePublished says that the row may be in its partition all the same: some
	// attempt ended without an answer.
	MayBePublished bool
}
