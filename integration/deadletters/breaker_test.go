package deadletters

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Of a hundred rows that cannot be published only so many become dead letters that they are a fifth of all; then the
// relay halts, for the fault is hardly theirs. A restart does not begin to count anew. Once the topic takes them the rest
// is published in order.
func TestBreaker(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	settings := testenv.Settings{"shutdown_timeout": "1s"}
	r := s.Start(settings)
	const good, poisonous, share = 80, 100, 20 // 20 of 100 are a fifth, 21 of 101 are more.
	s.Settled(s.Insert("order", "k", scene.Counted(1, good)...))
	var rows []string
	for _, n := range scene.Counted(good+1, good+poisonous) {
		rows = append(rows, large(n+" "))
	}
	within := s.Insert("order", "k", rows...)
	scene.Reason(t, r, s.topic, "breaker")
	s.WaitLetters("dead", share)
	s.Held(within)
	s.Stop(r)

	r = s.Start(settings)
	scene.Reason(t, r, s.topic, "breaker")
	s.WaitLetters("", share)
	s.Held(within)
	s.Stop(r)

	s.widen()
	r = s.Start(settings)
	s.Settled(within)
	want := scene.Counted(1, good)
	for _, n := range scene.Counted(good+share+1, good+poisonous) {
		want = append(want, n+" ")
	}
	s.holds(s.topic, want...)
	r.WaitReady(patience)
	s.WaitLetters("dead", share)
	s.Stop(r)
}

// A fault that hits every row from the first one on is noticed before it is twenty rows.
func TestBreakerFromTheFirstRow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(testenv.Settings{"shutdown_timeout": "1s"})
	var within string
	for _, n := range scene.Counted(1, 30) {
		within = s.Insert("no/topic", "k", n)
	}
	scene.Reason(t, r, "breaker")
	if n := len(s.Letters()); n < 15 || n > 20 {
		t.Errorf("%d rows were given up, want hardly 20", n)
	}
	s.Held(within)
	s.Stop(r)
}
