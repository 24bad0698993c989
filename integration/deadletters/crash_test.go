package deadletters

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/crash"
)

// Wherever the relay dies around a dead letter, its row is in the dead letters once and never on the topic, although the
// topic takes it when the successor comes; its neighbours are on the topic once, in order.
func TestKilledAroundDeadLetter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		at    string
		after bool // the dead letter is committed by then
	}{
		{crash.DeadLetter, false},
		{crash.DeadLettered, true},
		{crash.DeadLettered + ":2", true},
		{crash.Watermark, false},
		{crash.Watermark + ":2", false},
		{crash.Confirmed, false},
		{crash.Confirmed + ":2", false},
	} {
		t.Run(tt.at, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.prepare()
			r := s.StartRelay(testenv.RelayOptions{CrashAt: tt.at})
			s.Insert("order", "k", "1", large("2 "), "3")
			s.Insert("order", "k", "4", large("5 "), "6") // The position moves more than once.
			if code := r.Wait(patience); code != -1 {
				t.Errorf("exit code %d, want the end by a signal", code)
			}
			before := s.Letters()
			if tt.after && len(before) == 0 {
				t.Error("the dead letter is not committed")
			}
			s.judgeKilled(before)
		})
	}
}

// judgeKilled starts a successor and looks at what it makes of the rows 1 to 6, of which 2 and 5 are large.
func (s *stage) judgeKilled(before []scene.Letter) {
	s.t.Helper()
	if len(before) == 2 {
		s.widen() // They would be published now, were they not known.
	}
	r := s.Start(nil)
	s.Settled(s.Insert("order", "k", "7"))
	letters := s.WaitLetters("dead", 2)
	if got := heads(letters); !slices.Equal(got, []string{"2 ", "5 "}) {
		s.t.Errorf("the dead letters are the rows %q", got)
	}
	for i, l := range before {
		if l.ID != letters[i].ID || l.Attempts != letters[i].Attempts {
			s.t.Errorf("dead letter %d was %+v, is %+v", i, l, letters[i])
		}
	}
	s.holds(s.topic, "1", "3", "4", "6", "7")
	if n := s.Count(s.topic); n != 5 {
		s.t.Errorf("the topic holds %d records, want 5", n)
	}
	s.Stop(r)
}

// prepare creates what the relay needs in Postgres.
func (s *stage) prepare() {
	s.t.Helper()
	if res := s.Run("init", "--config", s.WriteConfig(nil)); res.Code != 0 {
		s.t.Fatalf("init exits with %d: %s", res.Code, res.Stderr)
	}
}

// A dead letter that is replayed or discarded while no relay runs, before the position has passed its row, stays what it
// is: the row is met again, and is not published for its own sake.
func TestSettledBeforeTheRestart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.prepare()
	// The second one does not get to the lane, so the first is committed and the position is behind it.
	r := s.StartRelay(testenv.RelayOptions{CrashAt: crash.DeadLettered + ":2"})
	s.Insert("order", "k", "1", large("2 "), "3", large("4 "), "5")
	if code := r.Wait(patience); code != -1 {
		t.Errorf("exit code %d, want the end by a signal", code)
	}
	letters := s.WaitLetters("dead", 2)
	s.widen()
	after := s.Replay(letters[0].ID)
	s.discard(letters[1].ID)
	r = s.Start(nil)
	s.Settled(after)
	s.Settled(s.Insert("order", "k", "6"))
	records := s.holds(s.topic, "1", "3", "5", "2 ", "6")
	if got, _ := records[3].Header("cdc-relay-replay"); got != "1" {
		t.Errorf("the replayed row has the count %q, want 1", got)
	}
	if n := s.Count(s.topic); n != 5 {
		t.Errorf("the topic holds %d records, want 5", n)
	}
	s.WaitLetters("replayed", 1)
	s.WaitLetters("discarded", 1)
	s.Stop(r)
}

// A relay that dies on the way of a replay leaves it to its successor, which publishes it once: it finds what has been
// published already in the partition.
func TestKilledWhileReplaying(t *testing.T) {
	t.Parallel()
	for at, arrived := range map[string]int{crash.Replaying: 1, crash.Produced: 2, crash.Watermark: 1} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			r := s.Start(nil)
			s.Settled(s.Insert("order", "k", "1", large("2 ")))
			letter := s.WaitLetters("dead", 1)[0]
			s.Stop(r)
			s.widen()
			r = s.StartRelay(testenv.RelayOptions{CrashAt: at})
			after := s.Replay(letter.ID)
			if code := r.Wait(patience); code != -1 {
				t.Errorf("exit code %d, want the end by a signal", code)
			}
			if n := s.Count(s.topic); n < arrived {
				t.Fatalf("%d records, want at least %d", n, arrived)
			}
			r = s.Start(nil)
			s.Settled(after)
			s.Settled(s.Insert("order", "k", "3"))
			records := s.holds(s.topic, "1", "2 ", "3")
			if n := s.Count(s.topic); n != 3 {
				t.Errorf("the topic holds %d records, want 3", n)
			}
			if id, _ := records[1].Header("id"); id != string(letter.MessageID) {
				t.Errorf("the replayed row has the id %q, want %q", id, letter.MessageID)
			}
			s.WaitLetters("replayed", 1)
			s.Stop(r)
		})
	}
}

// Connections that break while rows are given up cost nothing: each row is a dead letter once, its neighbours are on the
// topic once, in order.
func TestConnectionsBreak(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(testenv.Settings{"breaker.share": 1})
	var want, poison []string
	after := ""
	for n := range 12 {
		good, bad := fmt.Sprintf("%02d a ", n), fmt.Sprintf("%02d b ", n)
		want, poison = append(want, good, good+"behind "), append(poison, bad)
		after = s.Insert("order", "k", good, large(bad), good+"behind ")
		which := "backend_type = 'walsender'"
		switch n % 3 {
		case 1:
			which = "backend_type <> 'walsender'" // the letters' own among them
		case 2:
			s.WaitLetters("", n+1)
		}
		s.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'cdc-relay' AND ` + which)
	}
	s.Settled(after)
	s.holds(s.topic, want...)
	if n := s.Count(s.topic); n != len(want) {
		t.Errorf("the topic holds %d records, want %d", n, len(want))
	}
	if got := heads(s.WaitLetters("dead", len(poison))); !slices.Equal(got, poison) {
		t.Errorf("the dead letters are the rows %q, want %q", got, poison)
	}
	r.WaitReady(patience)
	s.Stop(r)
}
