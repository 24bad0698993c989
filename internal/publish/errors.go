package publish

import "fmt"

// HistoryError says that a partition does not hold what it must if this server's log
// is the one that the topic was written from, or that it has lost records that were
// acknowledged. The session has to be ended and begun anew from the confirmed
// position under another history, so that nothing is passed over.
type HistoryError struct {
	Topic     string
	Partition int
	Reason    string
}

// Error implements error.
func (e *HistoryError) Error() string {
	return fmt.Sprintf("%s[%d]: %s: everything that is not confirmed has to be published again under a new history id", e.Topic, e.Partition, e.Reason)
}

// TimelineError says that a partition holds records of a later timeline than the
// server's: this server was the primary once, and another one has been since.
type TimelineError struct {
	Topic     string
	Partition int
	// Timeline is the highest one found.
	Timeline uint32
}

// Error implements error.
func (e *TimelineError) Error() string {
	return fmt.Sprintf("%s[%d] holds records of timeline %d, which this server has not reached: another server was the primary since", e.Topic, e.Partition, e.Timeline)
}
