package checker

import (
	"encoding/json"
	"testing"
)

// step is a record of key "k" that is read.
type step struct {
	number    int64
	id        string // default: one of the number
	partition int32
	change    func(*record, *event)
}

func ledgerOf(t *testing.T, steps []step) *ledger {
	t.Helper()
	l := newLedger(false)
	enterSteps(t, &l, steps)
	return &l
}

func enterSteps(t *testing.T, l *ledger, steps []step) {
	t.Helper()
	for i, s := range steps {
		id := s.id
		if id == "" {
			id = string(rune('a' + s.number))
		}
		e := newEvent(id, "k", s.number, 20)
		r := record{place: place{"t", s.partition}, offset: int64(i), key: "k", id: id}
		if s.change != nil {
			s.change(&r, &e)
		}
		var err error
		if r.value, err = json.Marshal(e); err != nil {
			t.Fatal(err)
		}
		l.enter(r)
	}
}

func TestJudge(t *testing.T) {
	ends := func(end int64) map[string]map[int32]int64 { return map[string]map[int32]int64{"t": {0: end}} }
	tests := map[string]struct {
		steps   []step
		count   int64
		notes   []note
		samples []sample
		want    Report
	}{
		"all there": {
			steps: []step{{number: 1}, {number: 2}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 3},
		},
		"nothing there": {count: 2, want: Report{Committed: 2, Missing: 2}},
		"missing in the middle": {
			steps: []step{{number: 1}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 2, Missing: 1, OutOfOrder: 1},
		},
		"missing at the end": {
			steps: []step{{number: 1}}, count: 2,
			want: Report{Committed: 2, Records: 1, Missing: 1},
		},
		"repeated from the middle": {
			steps: []step{{number: 1}, {number: 2}, {number: 1}, {number: 2}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 5, Duplicates: 2},
		},
		"swapped": {
			steps: []step{{number: 2}, {number: 1}}, count: 2,
			want: Report{Committed: 2, Records: 2, OutOfOrder: 1},
		},
		"never committed": {
			steps: []step{{number: 1}, {number: 2}}, count: 1,
			want: Report{Committed: 1, Records: 2, Foreign: 1},
		},
		"rolled back": {
			steps: []step{{number: 1, change: func(_ *record, e *event) { e.RolledBack = true }}, {number: 1}}, count: 1,
			want: Report{Committed: 1, Records: 2, Foreign: 1},
		},
		"two messages of one number": {
			steps: []step{{number: 1}, {number: 1, id: "other"}}, count: 1,
			want: Report{Committed: 1, Records: 2, Foreign: 1},
		},
		"changed payload": {
			steps: []step{{number: 1, change: func(_ *record, e *event) { e.Padding = "x" + e.Padding[1:] + "y" }}}, count: 1,
			want: Report{Committed: 1, Records: 1, Missing: 1, Foreign: 1},
		},
		"wrong record key": {
			steps: []step{{number: 1, change: func(r *record, _ *event) { r.key = "other" }}}, count: 1,
			want: Report{Committed: 1, Records: 1, Missing: 1, Foreign: 1},
		},
		"wrong id header": {
			steps: []step{{number: 1, change: func(r *record, _ *event) { r.id = "other" }}}, count: 1,
			want: Report{Committed: 1, Records: 1, Missing: 1, Foreign: 1},
		},
		"two partitions": {
			steps: []step{{number: 1}, {number: 2, partition: 1}}, count: 2,
			want: Report{Committed: 2, Records: 2, Missing: 1, Foreign: 1},
		},
		"confirmed when there": {
			steps: []step{{number: 1}, {number: 2}}, count: 2,
			notes:   []note{{1, 100}, {2, 200}},
			samples: []sample{{99, 99, ends(0)}, {100, 100, ends(1)}, {199, 199, ends(1)}, {200, 200, ends(2)}},
			want:    Report{Committed: 2, Records: 2, Samples: 4},
		},
		"confirmed too early": {
			steps: []step{{number: 1}, {number: 2}}, count: 2,
			notes:   []note{{1, 100}, {2, 200}},
			samples: []sample{{100, 100, ends(0)}, {200, 200, ends(1)}},
			want:    Report{Committed: 2, Records: 2, Samples: 2, Early: 2},
		},
		"confirmed before anything of the key was kept": {
			steps: []step{{number: 1}}, count: 1,
			notes:   []note{{0, 100}, {1, 200}}, // All of the first transaction's rows were rolled back to a savepoint.
			samples: []sample{{150, 150, ends(0)}},
			want:    Report{Committed: 1, Records: 1, Samples: 1},
		},
		"confirmed and missing": {
			steps: []step{{number: 1}}, count: 2,
			notes:   []note{{1, 100}, {2, 200}},
			samples: []sample{{300, 300, ends(1)}},
			want:    Report{Committed: 2, Records: 1, Missing: 1, Samples: 1, Early: 1},
		},
		"notes that overtook each other": {
			steps: []step{{number: 1}, {number: 2}}, count: 2,
			notes:   []note{{1, 210}, {2, 200}}, // 2 is noted at 200, so it and 1 were committed by then.
			samples: []sample{{205, 205, ends(1)}, {220, 220, ends(1)}},
			want:    Report{Committed: 2, Records: 2, Samples: 2, Early: 2},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			seen := ledgerOf(t, test.steps)
			got := judge(map[string]int64{"k": test.count}, seen, map[string][]note{"k": test.notes}, test.samples)
			if faults := got.Missing + int64(got.OutOfOrder+got.Foreign+got.Early); int64(len(got.Faults)) != faults {
				t.Errorf("got %d descriptions of %d faults", len(got.Faults), faults)
			}
			got.Faults = nil
			if got.String() != test.want.String() {
				t.Errorf("\ngot  %v\nwant %v", got, test.want)
			}
			if got.OK() != (got.Missing+int64(got.OutOfOrder+got.Foreign+got.Early) == 0) {
				t.Errorf("OK is %v", got.OK())
			}
		})
	}
}

func TestPaddingTellsEventsApart(t *testing.T) {
	if padding("a", 1, 30) == padding("a", 2, 30) || padding("a", 1, 30) == padding("b", 1, 30) {
		t.Error("two events have one padding")
	}
	if got := len(padding("a", 1, 30)); got != 30 {
		t.Errorf("got %d bytes, want 30", got)
	}
}
