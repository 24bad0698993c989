package checker

import (
	"encoding/json"
	"testing"
)

// dead is a dead letter of key "k": of which number, and how it differs from a good one.
type dead struct {
	number int64
	change func(*letter, *event)
}

func letters(t *testing.T, of []dead) (found []*letter) {
	t.Helper()
	for i, d := range of {
		e := newEvent(string(rune('a'+d.number)), "k", d.number, 20)
		e.Poison = true
		l := &letter{identity: identity{id: int64(i + 1), message: e.ID, created: 100 * d.number}, commit: 1, state: "dead"}
		if d.change != nil {
			d.change(l, &e)
		}
		value, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		l.open([]byte(e.Key), value)
		found = append(found, l)
	}
	return found
}

func replayedTimes(n int) func(*letter, *event) {
	return func(l *letter, _ *event) { l.state, l.replays = "replayed", n }
}

func isReplay(n int) func(*record, *event) {
	return func(r *record, _ *event) { r.replay = n }
}

func TestJudgeLetters(t *testing.T) {
	replayElsewhere := func(r *record, _ *event) { r.replay, r.place = 1, place{"other", 3} }
	tests := map[string]struct {
		before, letters []dead // read before the records; default: the same
		steps           []step
		count           int64
		notes           []note
		samples         []sample
		want            Report
	}{
		"in the middle": {
			letters: []dead{{number: 2}}, steps: []step{{number: 1}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 2, Letters: 1},
		},
		"all of them": {
			letters: []dead{{number: 1}, {number: 2}}, count: 2,
			want: Report{Committed: 2, Letters: 2},
		},
		"written after a later row was sent": {
			before: []dead{}, letters: []dead{{number: 2}}, steps: []step{{number: 1}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 2, Letters: 1, OutOfOrder: 1},
		},
		"lost": {
			before: []dead{{number: 2}}, letters: []dead{}, steps: []step{{number: 1}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 2, Missing: 1},
		},
		"lost and written again": {
			before:  []dead{{number: 2}},
			letters: []dead{{number: 2, change: func(l *letter, _ *event) { l.created++ }}}, steps: []step{{number: 1}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 2, Letters: 1},
		},
		"on the topic, too": {
			letters: []dead{{number: 2}}, steps: []step{{number: 1}, {number: 2}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 3, Letters: 1, Both: 1},
		},
		"may be published": {
			letters: []dead{{number: 2, change: func(l *letter, _ *event) { l.mayBePublished = true }}},
			steps:   []step{{number: 1}, {number: 2}, {number: 3}}, count: 3,
			want: Report{Committed: 3, Records: 3, Letters: 1},
		},
		"replayed": {
			letters: []dead{{number: 2, change: replayedTimes(1)}},
			steps:   []step{{number: 1}, {number: 3}, {number: 2, change: replayElsewhere}, {number: 4}}, count: 4,
			want: Report{Committed: 4, Records: 4, Letters: 1, Replayed: 1},
		},
		"replayed twice": {
			letters: []dead{{number: 2, change: replayedTimes(2)}},
			steps:   []step{{number: 1}, {number: 2, change: isReplay(1)}, {number: 2, change: isReplay(2)}, {number: 2, change: isReplay(2)}}, count: 2,
			want: Report{Committed: 2, Records: 4, Letters: 1, Replayed: 2, Duplicates: 1},
		},
		"replay is not there": {
			letters: []dead{{number: 2, change: replayedTimes(2)}},
			steps:   []step{{number: 1}, {number: 2, change: isReplay(1)}}, count: 2,
			want: Report{Committed: 2, Records: 2, Letters: 1, Replayed: 1, Missing: 1},
		},
		"replayed, though nobody asked": {
			letters: []dead{{number: 2}},
			steps:   []step{{number: 1}, {number: 2, change: isReplay(1)}}, count: 2,
			want: Report{Committed: 2, Records: 2, Letters: 1, Replayed: 1, Foreign: 1},
		},
		"replayed with another id": {
			letters: []dead{{number: 2, change: replayedTimes(1)}},
			steps:   []step{{number: 1}, {number: 2, change: func(r *record, _ *event) { r.replay, r.id = 1, "other" }}}, count: 2,
			want: Report{Committed: 2, Records: 2, Letters: 1, Foreign: 1, Missing: 1},
		},
		"twice": {
			letters: []dead{{number: 1}, {number: 1}}, count: 1,
			want: Report{Committed: 1, Letters: 2, Wrongful: 1},
		},
		"never committed": {
			letters: []dead{{number: 1}, {number: 2}}, count: 1,
			want: Report{Committed: 1, Letters: 2, Wrongful: 1},
		},
		"of a good row": {
			letters: []dead{{number: 1, change: func(_ *letter, e *event) { e.Poison = false }}}, count: 1,
			want: Report{Committed: 1, Letters: 1, Wrongful: 1},
		},
		"rolled back": {
			letters: []dead{{number: 1, change: func(_ *letter, e *event) { e.RolledBack = true }}}, count: 1,
			want: Report{Committed: 1, Letters: 1, Wrongful: 1},
		},
		"changed": {
			letters: []dead{{number: 1, change: func(_ *letter, e *event) { e.Padding = "x" + e.Padding[1:] + "y" }}}, count: 1,
			want: Report{Committed: 1, Letters: 1, Wrongful: 1},
		},
		"confirmed when it was there": {
			letters: []dead{{number: 1}}, count: 1, notes: []note{{1, 100}}, samples: []sample{{99, 0, nil}, {100, 100, nil}},
			want: Report{Committed: 1, Letters: 1, Samples: 2},
		},
		"confirmed too early": {
			letters: []dead{{number: 1}}, count: 1, notes: []note{{1, 100}}, samples: []sample{{100, 99, nil}},
			want: Report{Committed: 1, Letters: 1, Samples: 1, Early: 1},
		},
		"confirmed when the one before was nowhere": {
			letters: []dead{{number: 2}}, steps: []step{{number: 1}}, count: 2,
			notes: []note{{2, 100}}, samples: []sample{{100, 200, nil}},
			want: Report{Committed: 2, Records: 1, Letters: 1, Samples: 1, Early: 1},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			seen := newLedger(false)
			if test.before == nil {
				test.before = test.letters
			}
			seen.hold(letters(t, test.before))
			enterSteps(t, &seen, test.steps)
			seen.hold(letters(t, test.letters))
			counters := map[string]int64{"k": test.count}
			got := judge(counters, &seen, map[string][]note{"k": test.notes}, test.samples)
			judgeLetters(&got, counters, &seen)
			if int64(len(got.Faults)) != got.faults() {
				t.Errorf("%d faults are described: %v", len(got.Faults), got)
			}
			got.Faults = nil
			if got.String() != test.want.String() {
				t.Errorf("\ngot  %v\nwant %v", got, test.want)
			}
			if got.OK() != (test.want.faults() == 0) {
				t.Errorf("OK is %v", got.OK())
			}
		})
	}
}

// A transaction is whole when the last of its rows is a dead letter, and that counts as a row that is there.
func TestDeadLettersArrive(t *testing.T) {
	l := newLedger(false)
	enterSteps(t, &l, []step{{number: 1, change: func(_ *record, e *event) { e.Transaction, e.Rows = "t", 2 }}})
	if len(l.partial) != 1 {
		t.Fatalf("got %v, want half a transaction", l.partial)
	}
	found := func() []*letter {
		return letters(t, []dead{{number: 2, change: func(l *letter, e *event) { e.Transaction, e.Rows, l.commit = "t", 2, 500 }}})
	}
	l.hold(found())
	l.hold(found())
	if len(l.partial) != 0 || l.past(500) != 1 {
		t.Errorf("%d transactions are half there, %d rows are past 500; want none and 1", len(l.partial), l.past(500))
	}
}
