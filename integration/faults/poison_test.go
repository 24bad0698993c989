package faults_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/checker"
)

// poisonous is how many rows there are to one that cannot be published.
const poisonous = 50

// A relay is killed again and again while it puts rows aside that no broker takes, and while some of those are replayed.
// Each event is on its topic or among the dead letters in the end, and on a topic as well only if it was replayed.
func TestKillRoundsWithPoison(t *testing.T) {
	l := newLab(t, plan{brokers: 1, repeats: checker.LateRepeats, poison: poisonous})
	asked := 0
	l.beforeLife = func() { asked += l.replay(10, l.random.IntN(4) > 0).Replayed }
	skipped := l.killRounds(*poison, slices.Concat(points, []point{
		{"dead_letter", 1, 40}, // Fifty come in a second.
		{"dead_letter", 1, 40},
		{"dead_lettered", 1, 40},
		{"dead_lettered", 1, 40},
		{"confirmed", 5, 45},
		{"replaying", 1, 10},
		{"replaying", 1, 10},
	}))
	report := l.judge()
	t.Logf("%d rounds, %d of them skipped rows; %d repeats; %d dead letters, %d replays asked for, %d published",
		*poison, skipped, report.Duplicates, report.Letters, asked, report.Replayed)
	if report.Letters == 0 || report.Replayed == 0 {
		t.Error("there were no dead letters, or none was replayed: the test shows nothing")
	}
}

// replay asks for replays of the oldest dead letters, and returns how many there are to replay and how many it has asked
// for. Those for a topic that cannot be go to another one; without that most are refused again.
func (l *lab) replay(most int, redirect bool, more ...string) (answer struct{ Matched, Replayed int }) {
	l.t.Helper()
	args := []string{"dlq", "replay", "--config", l.env.WriteConfig(l.direct()), "-o", "json", "--max", fmt.Sprint(most)}
	if redirect {
		args = append(args, "--reason", "invalid_topic", "--to-topic", l.env.Topic("order"))
	} else {
		args = append(args, "--all")
	}
	res := l.env.Run(append(args, more...)...)
	if res.Code != 0 {
		l.t.Fatalf("%s exits with %d: %s", strings.Join(args, " "), res.Code, res.Stderr)
	}
	if err := json.Unmarshal([]byte(res.Stdout), &answer); err != nil {
		l.t.Fatal(err)
	}
	return answer
}
