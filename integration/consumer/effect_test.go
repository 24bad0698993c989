package consumer

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	committed := map[string]int64{"a": 3, "b": 1}
	of := func(text string) (all []Effect) {
		for field := range strings.FieldsSeq(text) {
			all = append(all, Effect{Key: field[:1], N: int64(field[1] - '0')})
		}
		return all
	}
	for _, c := range []struct{ name, effects, want string }{
		{"right", "a1 b1 a2 a3", ""},
		{"missing", "a1 b1 a2", "a: 2 of 3 events have an effect"},
		{"nothing", "", "b: 0 of 1 events"},
		{"twice", "a1 b1 a2 a2 a3", "a: event 2 has a second effect"},
		{"late", "a2 a1 b1 a3", "a: event 2 comes behind 0"},
		{"hole", "a1 b1 a3", "a: event 3 comes behind 1"},
		{"invented", "a1 a2 a3 b1 b2", "b: event 2 has an effect, and 1 were committed"},
		{"stranger", "a1 a2 a3 b1 c1", "c: event 1 has an effect, and 0 were committed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Judge(of(c.effects), committed)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
