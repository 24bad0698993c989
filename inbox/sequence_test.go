package inbox

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

const (
	historyA = "5f0c21d4a97be310.00000001"
	historyB = "aaaaaaaaaaaaaaaa.00000001"
	promoted = "5f0c21d4a97be310.00000002"
)

// header returns a position header with the commit LSN.
func header(history string, commit int, kind byte) string {
	return fmt.Sprintf("1.%s.9c1be0d1f22a7745.00000006.%s.3cdd6d2f1a9e7b10", history, at(commit, kind))
}

// at returns what two positions compare by.
func at(commit int, kind byte) string {
	return fmt.Sprintf("%016x.000000001a2b3c40.%c.00000000", commit, kind)
}

func message(headers ...string) *Message {
	m := &Message{ID: "1", Topic: "t", Key: []byte("k")}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Headers = append(m.Headers, Header{Name: headers[i], Value: []byte(headers[i+1])})
	}
	return m
}

func versioned(version int) *Message { return message("aggregateversion", strconv.Itoa(version)) }

func positioned(position string) *Message { return message("cdc-relay-position", position) }

func TestJudge(t *testing.T) {
	byVersion := Sequence{Mode: ByVersion, First: 1}
	byPosition := Sequence{Mode: ByPosition}
	version := func(v int64) reached { return reached{version: &v} }
	position := func(history, position string) reached { return reached{history: &history, position: &position} }
	for _, test := range []struct {
		name string
		seq  Sequence
		m    *Message
		last reached
		want verdict
	}{
		{"the first of a key", byVersion, versioned(1), reached{}, goOn},
		{"the second before the first", byVersion, versioned(2), reached{}, gap},
		{"before the first", byVersion, versioned(0), reached{}, stale},
		{"the first is another", Sequence{Mode: ByVersion, First: 5}, versioned(5), reached{}, goOn},
		{"any first", Sequence{Mode: ByVersion, First: 1, AnyFirst: true}, versioned(7), reached{}, goOn},
		{"any first, and then in order", Sequence{Mode: ByVersion, First: 1, AnyFirst: true}, versioned(9), version(7), gap},
		{"the next", byVersion, versioned(8), version(7), goOn},
		{"the same again", byVersion, versioned(7), version(7), stale},
		{"an old one", byVersion, versioned(3), version(7), stale},
		{"one is missing", byVersion, versioned(9), version(7), gap},
		{"without version and position", byVersion, message(), version(7), goOn},
		{"a version that is no number", byVersion, message("aggregateversion", "x"), version(7), goOn},
		{
			"an old position beside a next version", byVersion, message("aggregateversion", "8", "cdc-relay-position", header(historyA, 1, 'r')),
			reached{version: new(int64(7)), history: new(historyA), position: new(at(2, 'r'))},
			goOn,
		},
		{"without version an old position decides", byVersion, positioned(header(historyA, 1, 'r')), position(historyA, at(2, 'r')), stale},

		{"a version where positions are asked for", byPosition, versioned(3), version(7), goOn},
		{"the first position", byPosition, positioned(header(historyA, 1, 'r')), reached{}, goOn},
		{"a later position", byPosition, positioned(header(historyA, 3, 'r')), position(historyA, at(2, 'r')), goOn},
		{"the same position", byPosition, positioned(header(historyA, 2, 'r')), position(historyA, at(2, 'r')), stale},
		{"an earlier position", byPosition, positioned(header(historyA, 1, 'r')), position(historyA, at(2, 'r')), stale},
		{"an earlier position of another history", byPosition, positioned(header(historyB, 1, 'r')), position(historyA, at(2, 'r')), goOn},
		{"an earlier position of another timeline", byPosition, positioned(header(promoted, 1, 'r')), position(historyA, at(2, 'r')), goOn},
		{"a replay by position", byPosition, positioned(header(historyA, 1, 'm')), position(historyA, at(2, 'r')), goOn},
		{"a replay by header", byPosition, message("cdc-relay-position", header(historyA, 1, 'r'), "cdc-relay-replay", "1"), position(historyA, at(2, 'r')), goOn},
		{"another format", byPosition, positioned("2" + header(historyA, 1, 'r')[1:]), position(historyA, at(2, 'r')), goOn},
		{"a cut header", byPosition, positioned(header(historyA, 1, 'r')[:98]), position(historyA, at(2, 'r')), goOn},
		{"an empty header", byPosition, positioned(""), position(historyA, at(2, 'r')), goOn},
	} {
		if got := test.seq.judge(test.m, test.last); got != test.want {
			t.Errorf("%s: verdict %d, want %d", test.name, got, test.want)
		}
	}
}

// The example of docs/position-header.md.
func TestPlaceOf(t *testing.T) {
	const text = "1.5f0c21d4a97be310.00000001.9c1be0d1f22a7745.00000006.000000001a2b3c98.000000001a2b3c40.r.00000000.3cdd6d2f1a9e7b10"
	got, ok := placeOf(positioned(text))
	want := place{history: "5f0c21d4a97be310.00000001", position: "000000001a2b3c98.000000001a2b3c40.r.00000000"}
	if !ok || got != want {
		t.Errorf("place %+v, %v, want %+v", got, ok, want)
	}
}

func TestGapTimes(t *testing.T) {
	var g gapTimes
	const timeout = time.Minute
	start := time.Unix(0, 0)
	if got := g.since("a", start, timeout); got != 0 {
		t.Errorf("a new message has waited %v", got)
	}
	if got := g.since("a", start.Add(30*time.Second), timeout); got != 30*time.Second {
		t.Errorf("waited %v, want 30s", got)
	}
	g.forget("a")
	if got := g.since("a", start.Add(time.Minute), timeout); got != 0 {
		t.Errorf("a message that was forgotten has waited %v", got)
	}
	for i := range maxGapTimes {
		g.since(strconv.Itoa(i), start, timeout)
	}
	g.since("late", start.Add(time.Hour), timeout)
	if n := len(g.first); n != 1 {
		t.Errorf("%d messages are remembered, want the one that is not long past its time", n)
	}
}

func TestIdempotencyKey(t *testing.T) {
	// Written down: it may never change.
	const want = "5d906f491814bf40807b09a59b3ca0b837f8575a15fda6cc6aa119a2701db24e"
	key := IdempotencyKey("shipping", "42")
	if key != want {
		t.Errorf("key %s, want %s", key, want)
	}
	others := map[string]bool{key: true}
	for _, pair := range [][2]string{{"shipping4", "2"}, {"shippin", "g42"}, {"shipping", "43"}, {"", "shipping42"}} {
		if k := IdempotencyKey(pair[0], pair[1]); others[k] {
			t.Errorf("%q have the key of others", pair)
		} else {
			others[k] = true
		}
	}
}
