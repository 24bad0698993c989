package publishtest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// topicLimit is the largest batch that the topics of these tests take.
const topicLimit = 256 << 10

// noise is text of n bytes that hardly compresses.
func noise(n int) string {
	b := make([]byte, n/2)
	_, _ = rand.Read(b) // Never fails.
	return hex.EncodeToString(b)
}

// A batch that the topic does not take is split: no error, order kept.
func TestBatchesLargerThanTheTopicTakes(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	topic := s.CreateTopic("order", 1, "max.message.bytes", fmt.Sprint(topicLimit))
	r := s.Start(testenv.Settings{"kafka.max_message_bytes": "1MiB"})
	var rows []string
	for range 1000 {
		rows = append(rows, noise(2000))
	}
	s.Settled(s.Insert("order", "k", rows...))
	if got := scene.Values(s.Consume(topic, 1000, patience)); !slices.Equal(got, rows) {
		t.Errorf("%d records that differ from the rows", len(got))
	}
	if out := r.Output(); strings.Contains(out, `"level":"ERROR"`) || strings.Contains(out, `"level":"WARN"`) {
		t.Errorf("a batch that is split is nothing to complain of:\n%s", out)
	}
	s.Stop(r)
}

// With on_poison: halt a row that the topic does not take halts its lane and is named; its neighbours before it and on
// other lanes are delivered, nothing behind it. Once the topic takes it, it goes on in order.
func TestRowLargerThanTheTopicTakes(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	topic := s.CreateTopic("order", 1, "max.message.bytes", fmt.Sprint(topicLimit))
	other := s.CreateTopic("invoice", 1)
	settings := testenv.Settings{"on_poison": "halt", "shutdown_timeout": "1s"}
	r := s.Start(settings)
	large := noise(2 << 20)
	within := s.Insert("order", "k", "before", large, "behind")
	s.Insert("invoice", "k", "neighbour")
	s.Consume(other, 1, patience)
	var id string
	if err := s.Conn().QueryRow(t.Context(), `SELECT id FROM public.outbox WHERE payload = $1`, large).Scan(&id); err != nil {
		t.Fatal(err)
	}
	scene.Reason(t, r, topic+"[0] is halted", `message id "`+id+`"`, "at position ", "Message Size Too Large")
	s.Held(within)
	if got := scene.Values(s.Consume(topic, 1, patience)); !slices.Equal(got, []string{"before"}) {
		t.Errorf("got %.20q, want only what came before", got)
	}
	if strings.Contains(r.Output(), large[:40]) {
		t.Error("the row's content is in the log")
	}
	s.Set(topic, "max.message.bytes", "4194304")
	s.Stop(r)
	r = s.Start(settings)
	s.Settled(within)
	got := scene.Values(s.Consume(topic, s.Count(topic), patience))
	if want := []string{"before", large, "behind"}; !slices.Equal(got, want) {
		t.Errorf("%d records, not the three rows in order, each once", len(got))
	}
	s.Stop(r)
}

// What counts is the size after compression.
func TestRowThatFitsCompressed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	topic := s.CreateTopic("order", 1, "max.message.bytes", fmt.Sprint(topicLimit))
	r := s.Start(testenv.Settings{"kafka.compression": "zstd"})
	rows := []string{"1", strings.Repeat("compressible ", 25_000), "3"}
	s.Insert("order", "k", rows...)
	if got := scene.Values(s.Consume(topic, 3, patience)); !slices.Equal(got, rows) {
		t.Errorf("%d records that differ from the rows", len(got))
	}
	s.Stop(r)
}
