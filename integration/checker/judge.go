package checker

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Report is what Checker has found. Only the numbers up to Duplicates are not faults.
type Report struct {
	// Committed is the number of events that are committed.
	Committed int64
	// Records is the number of records that were read.
	Records int
	// Samples is the number of confirmed positions that were looked at.
	Samples int
	// Duplicates is the number of second and further copies.
	Duplicates int

	// Missing is the number of committed events that are on no topic.
	Missing int64
	// OutOfOrder is the number of first copies that came before the first copy of an earlier event of their key.
	OutOfOrder int
	// Foreign is the number of records that should not be there at all: of rows that were rolled back or never
	// committed, on another topic or in another partition than their key's, or with changed content.
	Foreign int
	// Early is the number of events that were confirmed before they were on their topic.
	Early int

	// Faults describes the first faults of each kind.
	Faults []string
}

// OK says that nothing is wrong. Duplicates are not.
func (r Report) OK() bool {
	return r.Missing == 0 && r.OutOfOrder == 0 && r.Foreign == 0 && r.Early == 0
}

// String returns the report in one line, and the faults in further lines.
func (r Report) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "committed %d, records %d, duplicate %d, missing %d, out of order %d, foreign %d, confirmed early %d (%d samples)",
		r.Committed, r.Records, r.Duplicates, r.Missing, r.OutOfOrder, r.Foreign, r.Early, r.Samples)
	for _, fault := range r.Faults {
		text.WriteString("\n  " + fault)
	}
	return text.String()
}

// place is where the records of a key are.
type place struct {
	topic     string
	partition int32
}

// record is a record as read.
type record struct {
	place
	offset  int64
	key, id string
	value   []byte
}

// sample is a confirmed position and where the topics ended after it was read.
type sample struct {
	confirmed uint64
	ends      map[string]map[int32]int64
}

// ledger is what was read, in the order of each partition.
type ledger struct {
	keys       map[string]*history
	records    int
	duplicates int
	outOfOrder int
	foreign    int
	faults     map[string][]string // by kind
}

// history is what was read of one key.
type history struct {
	place
	first   map[int64]copied // first copies by number
	highest int64            // all numbers up to this one have been seen
}

// copied is a first copy: where it is, and of which message.
type copied struct {
	offset int64
	id     string
}

// enter takes records of a partition in order of their offsets.
func (l *ledger) enter(r record) {
	l.records++
	e, intact := parseEvent(r.value)
	h := l.keys[e.Key]
	if h == nil {
		h = &history{place: r.place, first: map[int64]copied{}}
	}
	copyOf, known := h.first[e.Number]
	switch where := fmt.Sprintf("%s/%d@%d: key %s number %d", r.topic, r.partition, r.offset, e.Key, e.Number); {
	case !intact || r.key != e.Key || r.id != e.ID:
		l.fault(&l.foreign, "foreign", "%s: content is not as written", where)
	case e.RolledBack:
		l.fault(&l.foreign, "foreign", "%s: rolled back", where)
	case h.place != r.place:
		l.fault(&l.foreign, "foreign", "%s: the key began in %s/%d", where, h.topic, h.partition)
	case known && copyOf.id != e.ID:
		l.fault(&l.foreign, "foreign", "%s: message %s, but at offset %d it is %s", where, e.ID, copyOf.offset, copyOf.id)
	case known:
		l.duplicates++
	default:
		if e.Number != h.highest+1 {
			l.fault(&l.outOfOrder, "order", "%s: expected number %d", where, h.highest+1)
		}
		l.keys[e.Key] = h
		h.first[e.Number] = copied{offset: r.offset, id: e.ID}
		for _, next := h.first[h.highest+1]; next; _, next = h.first[h.highest+1] {
			h.highest++
		}
	}
}

// fault counts a fault, and describes the first few of its kind.
func (l *ledger) fault(count *int, kind, format string, args ...any) {
	*count++
	if l.faults == nil {
		l.faults = map[string][]string{}
	}
	if len(l.faults[kind]) < 5 {
		l.faults[kind] = append(l.faults[kind], fmt.Sprintf(format, args...))
	}
}

// judge compares what was read with what is committed and what was confirmed.
func judge(counters map[string]int64, seen *ledger, notes map[string][]note, samples []sample) Report {
	more := ledger{} // Faults of this report alone.
	r := Report{
		Records: seen.records, Samples: len(samples), Duplicates: seen.duplicates,
		OutOfOrder: seen.outOfOrder, Foreign: seen.foreign,
	}
	for key, count := range counters {
		r.Committed += count
		h := seen.keys[key]
		if h == nil {
			h = &history{}
		}
		missing := 0
		for number := h.highest + 1; number <= count; number++ {
			if _, there := h.first[number]; !there {
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
	for _, faults := range []map[string][]string{seen.faults, more.faults} {
		for _, kind := range faults {
			r.Faults = append(r.Faults, kind...)
		}
	}
	sort.Strings(r.Faults)
	return r
}

// judgeSamples asks, at each sample, for the highest event of the key that was noted at or before the confirmed
// position. Asking for the highest is enough: order is judged apart.
func judgeSamples(r *Report, more *ledger, key string, h *history, notes []note, samples []sample) {
	notes = ascending(notes)
	for _, s := range samples {
		after := sort.Search(len(notes), func(i int) bool { return notes[i].wal > s.confirmed })
		if after == 0 {
			continue
		}
		number := notes[after-1].number
		if number == 0 {
			continue // All its rows so far were rolled back to a savepoint.
		}
		first, there := h.first[number]
		if !there || first.offset >= s.ends[h.topic][h.partition] {
			more.fault(&r.Early, "early", "key %s number %d was confirmed (%X) before it was on its topic", key, number, s.confirmed)
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
