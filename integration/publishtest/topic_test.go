package publishtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Rows of a topic that does not exist wait, and are named; the others go on while there is memory. Nothing creates the
// topic, though the broker would at the least request; once somebody has, it goes on.
func TestMissingTopic(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	there, missing := s.CreateTopic("there", 1), s.Topic("missing")
	r := s.Start(testenv.Settings{"limits.in_flight_bytes": "1MiB"})
	within := s.Insert("missing", "k", scene.Counted(1, 3)...)
	s.Insert("there", "k", scene.Counted(1, 5)...)
	s.Consume(there, 5, patience)
	scene.Reason(t, r, "3 rows wait for topic "+missing, "does not exist")

	const rows = 1500
	padding := strings.Repeat("x", 1000)
	var more []string
	for n := 4; n <= rows; n++ {
		more = append(more, strconv.Itoa(n)+padding)
	}
	s.Insert("missing", "k", more...)
	s.Insert("there", "k", "6")
	testenv.Until(t, patience, func(context.Context) error {
		if used := scene.Metric(t, r, "cdc_relay_in_flight_bytes"); used < 400<<10 {
			return fmt.Errorf("%v bytes in flight", used)
		}
		return nil
	})
	s.Held(within)
	if n := s.Count(there); n != 5 {
		t.Errorf("the other topic has %d records, want 5: there is no memory to read further", n)
	}
	if s.Partitions(missing) != 0 {
		t.Fatal("the missing topic has been created")
	}
	if n := strings.Count(r.Output(), "rows wait for their topic"); n != 1 {
		t.Errorf("said %d times that rows wait, want once", n)
	}

	s.CreateTopic("missing", 1)
	got := scene.Values(s.Consume(missing, rows, 20*time.Second))
	for i := range got {
		got[i] = strings.TrimRight(got[i], "x")
	}
	if !slices.Equal(got, scene.Counted(1, rows)) {
		t.Errorf("%d records, not the rows 1 to %d in order", len(got), rows)
	}
	s.Consume(there, 6, patience)
	r.WaitReady(patience)
	s.Settled(within)
	s.Stop(r)
}

// With kafka.create_topics a missing topic is made as it says.
func TestCreateTopics(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	r := s.Start(testenv.Settings{"kafka.create_topics": map[string]any{
		"partitions": 3, "replication_factor": 1,
		"config": map[string]string{"retention.ms": "123456789", "cleanup.policy": "compact"},
	}})
	s.Insert("new", "k", scene.Counted(1, 20)...)
	topic := s.Topic("new")
	testenv.Until(t, patience, func(context.Context) error {
		if n := s.Partitions(topic); n != 3 {
			return fmt.Errorf("topic has %d partitions, want 3", n)
		}
		return nil
	})
	if got := scene.Values(s.Consume(topic, 20, patience)); !slices.Equal(got, scene.Counted(1, 20)) {
		t.Errorf("got %q", got)
	}
	settings := s.TopicSettings(topic)
	for name, want := range map[string]string{"retention.ms": "123456789", "cleanup.policy": "compact", "min.insync.replicas": "1"} {
		if settings[name] != want {
			t.Errorf("%s is %q, want %q", name, settings[name], want)
		}
	}
	s.Stop(r)
}

// A topic name that Kafka does not allow is the row's fault. With on_poison: halt everything before it is delivered, nothing
// behind it is read, and the row's place in the log is named. A template that gives it a name helps.
func TestInvalidTopicName(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	good := s.CreateTopic("good", 1)
	halt := testenv.Settings{"on_poison": "halt"}
	r := s.Start(halt)
	s.Insert("good", "k", "1")
	within := s.Insert("a/b", "k", "2")
	s.Insert("good", "k", "3")
	scene.Reason(t, r, "halt: row at ", "of the transaction that commits at ", "a/b")
	s.Held(within)
	s.Stop(r)
	if got := scene.Values(s.Consume(good, 1, patience)); !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %q, want what came before the row", got)
	}
	other := s.CreateTopic("other", 1)
	r = s.Start(testenv.Settings{"on_poison": "halt", "routing.topic": other})
	if got := scene.Values(s.Consume(other, 2, patience)); !slices.Equal(got, []string{"2", "3"}) {
		t.Errorf("got %q, want the row and what came after it", got)
	}
	s.Stop(r)
}

// A topic that is deleted and made again, with as many partitions or fewer, goes on with what is not confirmed.
func TestTopicMadeAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	topic := s.CreateTopic("order", 3)
	r := s.Start(nil)
	put := func(from, to int) (within string) {
		for n := from; n <= to; n++ {
			within = s.Insert("order", "key-"+strconv.Itoa(n%7), strconv.Itoa(n))
		}
		return within
	}
	put(1, 30)
	s.Settled(put(31, 40))
	for round, partitions := range []int{3, 1} {
		s.Drop(topic)
		from := 100 * (round + 1)
		within := put(from, from+29)
		scene.Reason(t, r, topic)
		s.Held(within)
		s.CreateTopic("order", partitions)
		put(from+30, from+39)
		got := s.Consume(topic, 40, patience)
		testenv.Until(t, patience, func(context.Context) error {
			got = s.Consume(topic, s.Count(topic), patience)
			if n := len(scene.Firsts(got)); n != 40 {
				return fmt.Errorf("%d of 40 rows", n)
			}
			return nil
		})
		last := map[string]int{}
		for _, value := range scene.Firsts(got) {
			n, _ := strconv.Atoi(value)
			key := strconv.Itoa(n % 7)
			if n <= last[key] || n < from {
				t.Errorf("round %d: row %d of key %s comes after row %d", round, n, key, last[key])
			}
			last[key] = n
		}
		r.WaitReady(patience)
		s.Settled(put(from+40, from+40))
	}
	s.Stop(r)
}
