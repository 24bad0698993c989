package checker

import (
	"encoding/json"
	"strings"
	"testing"
)

// written is a record of key "k": its number, which decides its position, and who wrote it.
type written struct {
	number int64
	by     producer
	change func(*record)
}

// run has one writer write some numbers, one after the other.
func run(by producer, numbers ...int64) []written {
	var records []written
	for _, n := range numbers {
		records = append(records, written{number: n, by: by})
	}
	return records
}

func enterAll(t *testing.T, fenced bool, runs ...[]written) *ledger {
	t.Helper()
	l := newLedger(fenced)
	var offset int64
	for _, records := range runs {
		for _, w := range records {
			id := string(rune('a' + w.number))
			value, err := json.Marshal(newEvent(id, "k", w.number, 0))
			if err != nil {
				t.Fatal(err)
			}
			from := origin{position: position{commit: uint64(w.number) * 100, kind: 'r'}, producer: w.by}
			r := record{place: place{"t", 0}, origin: from, offset: offset, key: "k", id: id, value: value}
			if w.change != nil {
				w.change(&r)
			}
			l.enter(r)
			offset++
		}
	}
	return &l
}

// The writers: two processes with ids of their own, and one that has raised its epoch.
var (
	old    = producer{id: 7}
	next   = producer{id: 3} // An id says nothing about who came first.
	raised = producer{id: 7, epoch: 1}
)

func TestExplainRepeats(t *testing.T) {
	// at is a mark where the partition ended and so much was confirmed.
	at := func(end int64, confirmed uint64) sample {
		return sample{confirmed: confirmed, ends: map[string]map[int32]int64{"t": {0: end}}}
	}
	elsewhere := run(next, 2)
	elsewhere[0].change = func(r *record) { r.position.commit++ }
	unmarked := run(next, 2)
	unmarked[0].change = func(r *record) { r.position = position{} }
	promoted := run(next, 2)
	promoted[0].change = func(r *record) { r.position.timeline++ }
	tests := map[string]struct {
		runs                           [][]written
		marks                          []sample
		late, unexplained, unconfirmed int // with LateRepeats, and with UnconfirmedRepeats what is not late
		failedOver                     int
	}{
		"none": {runs: [][]written{run(old, 1, 2), run(next, 3)}, marks: []sample{at(0, 0), at(2, 0)}},
		"landed before the first row of the next": {
			runs:  [][]written{run(old, 1, 2, 3), run(next, 2, 4)},
			marks: []sample{at(0, 0), at(1, 0)}, late: 1,
		},
		"was there before the next began": {
			runs:  [][]written{run(old, 1, 2, 3), run(next, 2, 4)},
			marks: []sample{at(0, 0), at(3, 0)}, unexplained: 1, unconfirmed: 1,
		},
		"landed before the first row, and another is repeated too": {
			runs:  [][]written{run(old, 1, 2, 3), run(next, 2, 3, 4)},
			marks: []sample{at(0, 0), at(1, 0)}, late: 1, unexplained: 1, unconfirmed: 1,
		},
		"landed among the rows of the next": {
			runs:  [][]written{run(old, 1), run(next, 2), run(old, 2, 3, 4), run(next, 3, 4, 5)},
			marks: []sample{at(0, 0), at(1, 0)}, late: 3,
		},
		"written behind its successor, no marks": {
			runs: [][]written{run(old, 1), run(next, 2, 3), run(old, 2, 3)}, late: 2,
		},
		"first rows of a dead process land behind its successor": {
			runs:  [][]written{run(next, 1, 2), run(raised, 1)},
			marks: nil, late: 1,
		},
		"sent again under a raised epoch": {
			runs: [][]written{run(old, 1, 2), run(raised, 2, 3)}, late: 1,
		},
		"two sent again under a raised epoch": {
			runs: [][]written{run(old, 1, 2, 3), run(raised, 2, 3)}, late: 1, unexplained: 1, unconfirmed: 1,
		},
		"landed under a lower epoch": {
			runs: [][]written{run(raised, 1, 2), run(old, 2)}, late: 1,
		},
		"one process": {runs: [][]written{run(old, 1, 2, 2)}, unexplained: 1},
		"another position": {
			runs: [][]written{run(old, 1, 2), elsewhere}, unexplained: 1,
		},
		"from the next timeline": {runs: [][]written{run(old, 1, 2), promoted}, failedOver: 1},
		"from the former timeline, of a zombie": {
			runs: [][]written{run(old, 1), promoted, run(old, 2, 3)}, late: 1,
		},
		"no position": {runs: [][]written{run(old, 1, 2), unmarked}, unexplained: 1},
		"confirmed before": {
			runs:  [][]written{run(old, 1, 2, 3), run(next, 1, 2, 3)},
			marks: []sample{at(0, 0), at(3, 201)}, unexplained: 3, unconfirmed: 1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			seen := enterAll(t, false, test.runs...)
			var got Report
			judgeRepeats(&got, seen, test.marks, LateRepeats)
			if got.Late != test.late || got.Unexplained != test.unexplained || got.FailedOver != test.failedOver || got.Unconfirmed != 0 {
				t.Errorf("got %v, want %d late, %d failed over, %d unexplained", got, test.late, test.failedOver, test.unexplained)
			}
			if len(got.Faults) != got.Unexplained || got.OK() != (got.Unexplained == 0) {
				t.Errorf("%d faults described, OK is %v: %v", len(got.Faults), got.OK(), got)
			}
			got = Report{}
			judgeRepeats(&got, seen, test.marks, UnconfirmedRepeats)
			if got.Late != test.late || got.Unconfirmed != test.unconfirmed || got.Unexplained != test.unexplained-test.unconfirmed {
				t.Errorf("with resume off: got %v, want %d late, %d unconfirmed of %d others",
					got, test.late, test.unconfirmed, test.unexplained)
			}
			got = Report{}
			judgeRepeats(&got, seen, test.marks, AnyRepeat)
			if !got.OK() {
				t.Errorf("where any repeat is allowed: %v", got)
			}
		})
	}
}

func TestIntruders(t *testing.T) {
	tests := map[string]struct {
		runs [][]written
		want int
	}{
		"one after the other":             {runs: [][]written{run(old, 1), run(next, 2, 3)}},
		"raised":                          {runs: [][]written{run(old, 1), run(raised, 2), run(raised, 3)}},
		"the old one writes on":           {runs: [][]written{run(old, 1), run(next, 2), run(old, 3, 4), run(next, 5)}, want: 2},
		"a lower epoch, though its first": {runs: [][]written{run(raised, 1), run(old, 2)}, want: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, fenced := range []bool{false, true} {
				want := test.want
				if !fenced {
					want = 0
				}
				got := judge(nil, enterAll(t, fenced, test.runs...), nil, nil)
				if got.Intruding != want || len(got.Faults) != want || got.OK() != (want == 0) {
					t.Errorf("fenced %v: got %v, want %d intruding", fenced, got, want)
				}
			}
		})
	}
}

// What is on the topics when nothing runs: rows that are not confirmed, transactions of which the rest is missing.
func TestPastAndPartial(t *testing.T) {
	l := newLedger(false)
	for i := range int64(5) {
		e := event{Transaction: "t" + string(rune('1'+i/3)), Rows: 3}
		l.arrived(e, uint64(100*(i/3+1)))
	}
	if len(l.partial) != 1 || l.partial["t2"] != 1 {
		t.Errorf("got %v, want one row left of t2", l.partial)
	}
	for confirmed, want := range map[uint64]int{0: 5, 100: 5} {
		if got := l.past(confirmed); got != want {
			t.Errorf("past %d: got %d, want %d", confirmed, got, want)
		}
	}
	if first, second := l.past(101), l.past(0); first != 2 || second != 2 {
		t.Errorf("past 101: got %d, then %d; want 2, and the others forgotten", first, second)
	}
}

func TestParsePosition(t *testing.T) {
	const header = "1.5f0c21d4a97be310.00000001.9c1be0d1f22a7745.00000006.000000001a2b3c98.000000001a2b3c40.r.00000002.3cdd6d2f1a9e7b10"
	want := position{history: 0x5f0c21d4a97be310, timeline: 1, commit: 0x1a2b3c98, lsn: 0x1a2b3c40, kind: 'r', index: 2}
	if got, ok := parsePosition(header); !ok || got != want {
		t.Errorf("got %+v (%v), want %+v", got, ok, want)
	}
	for _, wrong := range []string{"", "2" + header[1:], header + "0", strings.Replace(header, ".r.", ".rr", 1), strings.Replace(header, "a", "g", 1)} {
		if got, ok := parsePosition(wrong); ok {
			t.Errorf("%q is %+v", wrong, got)
		}
	}
}
