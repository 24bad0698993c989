package deadletters

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Rows of a topic that does not exist become dead letters in their order once it has been missing for long enough: those
// that wait for a topic that never was, and those of one that has been deleted. As soon as there is the topic, rows go
// there, though a moment before it was missing.
func TestUnknownTopic(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const grace = time.Second
	r := s.Start(testenv.Settings{"on_unknown_topic": "dead_letter", "unknown_topic_grace": grace.String(), "breaker.share": 1})
	began := time.Now()
	after := s.Insert("missing", "k", "1", "2")
	s.Insert("missing", "other", "3")
	s.Insert("order", "k", "neighbour")
	s.holds(s.topic, "neighbour")
	letters := s.WaitLetters("dead", 3)
	if took := time.Since(began); took < grace {
		t.Errorf("given up after %v, before %v had passed", took, grace)
	}
	s.judgeUnknown(letters, scene.Counted(1, 3)...)
	s.Settled(after)
	r.WaitReady(patience)

	missing := s.CreateTopic("missing", 1)
	s.Settled(s.Insert("missing", "k", "4"))
	s.holds(missing, "4")
	s.WaitLetters("", 3)

	s.Drop(missing)
	after = s.Insert("missing", "k", "5", "6")
	s.judgeUnknown(s.WaitLetters("dead", 5)[3:], "5", "6")
	s.Settled(after)
	s.CreateTopic("missing", 1) // and what is not confirmed by then comes again
	s.Settled(s.Insert("missing", "k", "7"))
	s.Settled(s.Replay(ids(letters)...))
	got := scene.Firsts(s.Consume(missing, s.Count(missing), patience))
	if want := []string{"7", "1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("topic %s holds %q, want %q", missing, got, want)
	}
	s.WaitLetters("", 5)
	s.Stop(r)
}

// A row that is written right after its topic is made goes there, however long the topic has been missing and whatever the
// relay has last heard of it.
func TestTopicMadeJustBefore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(testenv.Settings{"on_unknown_topic": "dead_letter", "unknown_topic_grace": "1s", "breaker.share": 1})
	const topics = 12 // The client reads the layout once a second: of these some come late in that second.
	kind := func(i int) string { return fmt.Sprintf("made%d", i) }
	for i := range topics {
		s.Insert(kind(i), "k", "before")
	}
	s.WaitLetters("dead", topics)
	for i := range topics {
		topic := s.CreateTopic(kind(i), 1)
		s.Settled(s.Insert(kind(i), "k", "after"))
		s.holds(topic, "after")
	}
	s.WaitLetters("", topics)
	s.Stop(r)
}

func (s *stage) judgeUnknown(letters []scene.Letter, want ...string) {
	s.t.Helper()
	if got := heads(letters); !slices.Equal(got, want) || !slices.IsSorted(ids(letters)) {
		s.t.Errorf("dead letters %v hold %q, want %q in this order", ids(letters), got, want)
	}
	for _, l := range letters {
		if l.Reason != "unknown_topic" || l.Topic != s.Topic("missing") || l.MayBePublished {
			s.t.Errorf("got %+v, want one of an unknown topic", l)
		}
	}
}
