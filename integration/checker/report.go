package checker

import (
	"fmt"
	"strings"
)

// Repeats says which repeats are faults.
type Repeats uint8

const (
	// AnyRepeat is none: repeats are counted.
	AnyRepeat Repeats = iota
	// UnconfirmedRepeats is for a relay that does not look at the topics when it starts: it repeats what is past the
	// slot's confirmed position, and nothing else. It needs a [Checker.Mark] at each start.
	UnconfirmedRepeats
	// LateRepeats is for a relay that goes on where the topics end: it repeats what arrived there after it had looked,
	// and nothing else.
	LateRepeats
)

// Report is what Checker has found. Only the numbers up to Unconfirmed are not faults.
type Report struct {
	// Committed is the number of events that are committed.
	Committed int64
	// Records is the number of records that were read.
	Records int
	// Samples is the number of confirmed positions that were looked at.
	Samples int
	// Duplicates is the number of second and further copies, whatever their cause.
	Duplicates int
	// Late is the number of repeats of, or by, a batch that landed late: it was on its way when the next writer looked.
	Late int
	// FailedOver is the number of rows that had come from the former primary and came again from the present one.
	FailedOver int
	// Unconfirmed is the number of repeats that a writer made because the row was not confirmed when it began.
	Unconfirmed int

	// Unexplained is the number of repeats of any other cause, if Config.Repeats makes them a fault.
	Unexplained int
	// Intruding is the number of records that a fenced writer has written behind its successor.
	Intruding int
	// Missing is the number of committed events that are on no topic and not among the dead letters, and of dead letters
	// whose replay is on no topic.
	Missing int64
	// OutOfOrder is the number of first copies that came before the first copy of an earlier event of their key.
	OutOfOrder int
	// Foreign is the number of records that should not be there at all: of rows that were rolled back or never
	// committed, on another topic or in another partition than their key's, or with changed content.
	Foreign int
	// Early is the number of events that were confirmed before they were on their topic.
	Early int

	// Letters is the number of dead letters, Replayed the number of records that their replays have brought, without
	// repeats. Neither is a fault.
	Letters, Replayed int
	// Both is the number of events that are on a topic and among the dead letters, though neither were they replayed nor
	// does the letter say that they may have been published.
	Both int
	// Wrongful is the number of dead letters that should not be there: of rows that nothing is wrong with, that were
	// rolled back or never committed, with changed content, or second ones.
	Wrongful int

	// Faults describes the first faults of each kind.
	Faults []string
}

// OK says that nothing is wrong.
func (r Report) OK() bool { return r.faults() == 0 }

func (r Report) faults() int64 {
	return r.Missing + int64(r.OutOfOrder+r.Foreign+r.Early+r.Unexplained+r.Intruding+r.Both+r.Wrongful)
}

// String returns the report in one line, and the faults in further lines.
func (r Report) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "committed %d, records %d, missing %d, out of order %d, foreign %d, confirmed early %d (%d samples), intruding %d, "+
		"repeated %d (landed late %d, failed over %d, unconfirmed %d, unexplained %d)", r.Committed, r.Records, r.Missing, r.OutOfOrder, r.Foreign,
		r.Early, r.Samples, r.Intruding, r.Duplicates, r.Late, r.FailedOver, r.Unconfirmed, r.Unexplained)
	if r.Letters > 0 {
		fmt.Fprintf(&text, ", dead letters %d (replayed %d, on a topic as well %d, wrongful %d)", r.Letters, r.Replayed, r.Both, r.Wrongful)
	}
	for _, fault := range r.Faults {
		text.WriteString("\n  " + fault)
	}
	return text.String()
}
