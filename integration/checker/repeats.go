package checker

import "fmt"

// cause is why a row was repeated.
type cause uint8

const (
	unexplained cause = iota
	late
	failedOver
	unconfirmed
)

// explainer finds the causes of repeats.
type explainer struct {
	seen  *ledger
	marks []sample
	rule  Repeats
	begun map[producer]int // the last mark that was set before the producer wrote anything, or -1
}

func newExplainer(seen *ledger, marks []sample, rule Repeats) *explainer {
	x := &explainer{seen: seen, marks: marks, rule: rule, begun: map[producer]int{}}
	for writer, wrote := range seen.writers {
		x.begun[writer] = len(marks) - 1
		for place, offset := range wrote {
			for x.begun[writer] >= 0 && offset < marks[x.begun[writer]].ends[place.topic][place.partition] {
				x.begun[writer]--
			}
		}
	}
	return x
}

// explain finds the cause of a repeat. What is certain comes first: two copies of one row come from one position, no
// process writes a row twice, and what was confirmed before its writer began is not read again. For the rest it matters
// what the writer could know. It reads each partition before it writes there, up to its end, and sends a single row
// first; only a batch of another that lands meanwhile, or later, can be repeated, or repeat.
func (x *explainer) explain(r repeat) (why cause, text string) {
	first, writer := r.first, r.origin.producer
	from := r.origin.position
	from.timeline = first.position.timeline // It may have come from the former primary, and from the present one.
	if from != first.position || first.position == (position{}) {
		return unexplained, fmt.Sprintf("comes from another position than at %d", first.offset)
	}
	if r.origin.position.timeline > first.position.timeline {
		return failedOver, ""
	}
	if writer == first.producer {
		return unexplained, fmt.Sprintf("producer %d has written it at %d", writer.id, first.offset)
	}
	before, visible := x.begun[writer], false
	if before >= 0 {
		found := x.marks[before]
		if r.origin.position.commit < found.confirmed {
			return unexplained, fmt.Sprintf("was confirmed (%X) before producer %d began", found.confirmed, writer.id)
		}
		visible = first.offset < found.ends[r.topic][r.partition]
	}
	wroteFrom := x.seen.writers[writer][r.place]
	older := writer.id == first.producer.id && writer.epoch < first.producer.epoch || before < x.begun[first.producer]
	// The first copy landed before the writer's own first row, or among its rows, or the writer is the late one.
	switch {
	case !visible && (wroteFrom == r.offset || wroteFrom < first.offset || older):
		return late, ""
	case x.rule != LateRepeats:
		return unconfirmed, ""
	default:
		return unexplained, fmt.Sprintf("producer %d, who writes here from %d on, could see it at %d", writer.id, wroteFrom, first.offset)
	}
}
