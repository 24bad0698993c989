package resume_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// The relay goes on where it was killed: nothing comes twice.
func TestUnchanged(t *testing.T) {
	s := newStory(t)
	s.crash()
	s.restart()
	s.once()
}

// A relay that dies while it resumes, before its first batch or after some, is no different.
func TestCrashWhileResuming(t *testing.T) {
	s := newStory(t)
	s.crash()
	s.crashAgain("scanned")
	s.crashAgain("scanned:3")
	s.crashAgain("produced:10")
	s.restart()
	s.once()
}

// A changed routing sends everything that is not confirmed by the new one: what the topic holds says nothing about it.
func TestRoutingChanged(t *testing.T) {
	for name, change := range map[string]func(*story){
		"key template":   func(s *story) { s.settings["routing.key"] = "{aggregatetype}-{aggregateid}" },
		"topic template": newTopic,
		"column map":     func(s *story) { s.settings["outbox.columns"] = map[string]string{"payload": "other"} },
		"table added":    secondTable,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.crash()
			change(s)
			s.restart()
			s.all()
			s.changed(name)
		})
	}
	t.Run("table removed", func(t *testing.T) {
		s := newStory(t)
		secondTable(s)
		s.crash()
		delete(s.settings, "outbox.table")
		s.settings["outbox.ignored_tables"] = []string{"public.second"}
		s.restart()
		s.all()
	})
}

func newTopic(s *story) {
	s.settings["routing.topic"] = s.Prefix + "new-{aggregatetype}"
	s.topics = append(s.topics, s.CreateTopic("new-order", partitions))
}

func secondTable(s *story) {
	s.Exec(`CREATE TABLE public.second (LIKE public.outbox INCLUDING ALL)`)
	s.settings["outbox.table"] = []string{"public.outbox", "public.second"}
}

// changed fails the test unless the change shows in what came after it.
func (s *story) changed(name string) {
	s.t.Helper()
	shows := map[string]func(record) bool{
		"key template":   func(r record) bool { return r.key[:6] == "order-" },
		"topic template": func(r record) bool { return r.topic == s.topics[1] },
		"column map":     func(r record) bool { return r.value == "other" },
		"table added":    func(record) bool { return true },
	}[name]
	for _, r := range s.read(s.from) {
		if !shows(r) {
			s.t.Fatalf("%v@%d: the change of the %s does not show", r.place, r.offset, name)
		}
	}
}

// Two relays with a slot each write the same rows to one topic. Each finds its own.
func TestTwoSlotsOnOneTopic(t *testing.T) {
	s := newStory(t)
	other := testenv.Settings{"postgres.slot": s.Slot + "_b"}
	s.crash(other)
	s.restart(other)
	before, after := byHistory(s.before), byHistory(s.read(s.from))
	if len(before) != 2 || len(after) != 2 {
		t.Fatalf("records of %d histories, later of %d, want two", len(before), len(after))
	}
	for history, records := range before {
		s.judge(records, after[history], missing(records))
	}
	s.quiet()
}

// byHistory sorts records by the relay that has written them.
func byHistory(records []record) map[string][]record {
	sorted := map[string][]record{}
	for _, r := range records {
		sorted[r.history] = append(sorted[r.history], r)
	}
	return sorted
}

// Our records are copied into another partition, headers and all: what the relay finds there is not proved by the
// stream. It raises the alarm, takes a new history and sends everything that is not confirmed.
func TestRecordsCopied(t *testing.T) {
	s := newStory(t)
	s.crash()
	s.put(s.copies(), false, false)
	s.restart()
	all := s.read(s.from)
	after := byHistory(all)
	delete(after, s.before[0].history)
	for _, records := range after {
		s.judge(nil, records, missing(nil))
	}
	if len(after) != 1 {
		t.Errorf("records of %d new histories, want one", len(after))
	}
	s.inOrder(s.before, all)
	s.alarmed()
}

// copies are the records that are there, each for the partition before its own.
func (s *story) copies() (records []*kgo.Record) {
	for _, r := range s.before {
		records = append(records, &kgo.Record{
			Partition: (r.partition + partitions - 1) % partitions, Key: r.raw.Key, Value: r.raw.Value, Headers: r.raw.Headers,
		})
	}
	return records
}

// alarmed fails the test unless the relay has raised the alarm, once.
func (s *story) alarmed() {
	s.t.Helper()
	alarms := 0
	for line := range strings.Lines(s.again.Output()) {
		if strings.Contains(line, `"level":"ERROR"`) && strings.Contains(line, "history") {
			alarms++
		}
	}
	if renewed := scene.Metric(s.t, s.again, "cdc_relay_history_renewed_total"); alarms != 1 || renewed != 1 {
		s.t.Errorf("%d alarms, %v new histories, want one", alarms, renewed)
	}
}
