package checker

import (
	"cmp"
	"slices"
	"sort"
)

// sample is a confirmed position, when it was read by the server's clock, and where the topics ended afterwards.
type sample struct {
	confirmed uint64
	at        int64 // microseconds
	ends      map[string]map[int32]int64
}

// judge compares what was read with what is committed and what was confirmed.
func judge(counters map[string]int64, seen *ledger, notes map[string][]note, samples []sample) Report {
	more := ledger{} // Faults of this report alone.
	r := Report{
		Records: seen.records, Samples: len(samples), Duplicates: len(seen.repeats),
		OutOfOrder: seen.outOfOrder, Foreign: seen.foreign, Intruding: seen.intruding,
	}
	for key, count := range counters {
		r.Committed += count
		h := seen.keys[key]
		if h == nil {
			h = &history{}
		}
		missing := 0
		for number := h.highest + 1; number <= count; number++ {
			if !h.has(number) {
				more.fault(&missing, "missing", "key %s number %d is on no topic", key, number)
			}
		}
		r.Missing += int64(missing)
		for number, copyOf := range h.first {
			if number > count {
				more.fault(&r.Foreign, "uncommitted", "key %s number %d: message %s was never committed", key, number, copyOf.id)
			}
		}
		judgeSamples(&r, &more, key, h, notes[key], samples)
	}
	r.describe(seen, &more)
	return r
}

// judgeRepeats names the cause of each repeat and counts what the rule forbids.
func judgeRepeats(r *Report, seen *ledger, marks []sample, rule Repeats) {
	more := ledger{}
	x := newExplainer(seen, marks, rule)
	for _, repeat := range seen.repeats {
		why, text := x.explain(repeat)
		switch {
		case why == late:
			r.Late++
		case why == failedOver:
			r.FailedOver++
		case why == unconfirmed:
			r.Unconfirmed++
		case rule != AnyRepeat:
			more.fault(&r.Unexplained, "unexplained", "%s/%d@%d: key %s number %d: %s",
				repeat.topic, repeat.partition, repeat.offset, repeat.key, repeat.number, text)
		}
	}
	r.describe(&more)
}

// describe appends the descriptions of faults.
func (r *Report) describe(ledgers ...*ledger) {
	for _, l := range ledgers {
		for _, kind := range l.faults {
			r.Faults = append(r.Faults, kind...)
		}
	}
	sort.Strings(r.Faults)
}

// judgeSamples asks, at each sample, for the highest event of the key that was noted at or before the confirmed
// position. Asking for the highest is enough: order is judged apart. But a dead letter may overtake an event before it,
// so where it is one, the one before is asked for, too.
func judgeSamples(r *Report, more *ledger, key string, h *history, notes []note, samples []sample) {
	notes = ascending(notes)
	for _, s := range samples {
		after := sort.Search(len(notes), func(i int) bool { return notes[i].wal > s.confirmed })
		if after == 0 {
			continue
		}
		// Number 0: all its rows so far were rolled back to a savepoint.
		for number := notes[after-1].number; number > 0; number-- {
			dead := h.dead[number]
			if first, there := h.first[number]; there && first.offset < s.ends[h.topic][h.partition] {
				break
			}
			if dead == nil || dead.created > s.at {
				more.fault(&r.Early, "early", "key %s number %d was confirmed (%X) before it was on its topic", key, number, s.confirmed)
				break
			}
		}
	}
}

// ascending returns notes in order of their positions, each with the highest number noted so far. A writer that is slow
// to ask for the position may get one behind that of a later event.
func ascending(notes []note) []note {
	notes = slices.Clone(notes)
	slices.SortFunc(notes, func(a, b note) int { return cmp.Compare(a.wal, b.wal) })
	for i := 1; i < len(notes); i++ {
		notes[i].number = max(notes[i].number, notes[i-1].number)
	}
	return notes
}
