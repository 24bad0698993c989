package deadletters

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A replay publishes the record that the row would have been, behind what is there, with its number in one more header.
// Asked for twice it happens once, and no restart repeats it.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(nil)
	s.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, headers, payload) VALUES
		('order', 'k', 'OrderPlaced', '{"tenant": "t1", "n": 7}', 'like the others'),
		('order', 'k', 'OrderPlaced', '{"tenant": "t1", "n": 7}', $1), ('order', NULL, 'OrderPlaced', NULL, $2)`, large("1 "), large("2 "))
	letters := s.WaitLetters("dead", 2)
	s.Settled(s.Insert("order", "k", "3"))
	s.widen()
	s.Settled(s.Replay(ids(letters)...))
	s.Settled(s.Insert("order", "k", "4"))
	records := s.holds(s.topic, "like the others", "3", "1 ", "2 ", "4")
	for i, l := range letters {
		record := records[2+i]
		if id, _ := record.Header("id"); id != string(l.MessageID) || id != s.messageID(head(string(l.Value))) {
			t.Errorf("replayed as message %q, want %q", id, l.MessageID)
		}
		if string(record.Key) != string(l.Key) || (record.Key == nil) != (l.Key == nil) {
			t.Errorf("replayed with key %q, want %q", record.Key, l.Key)
		}
		if !record.Time.Equal(l.RecordTime.Truncate(time.Millisecond)) {
			t.Errorf("replayed with time %v, want %v", record.Time, l.RecordTime)
		}
		if count, _ := record.Header("cdc-relay-replay"); count != "1" {
			t.Errorf("replayed with count %q, want 1", count)
		}
	}
	if got, want := own(records[2]), own(records[0]); !slices.Equal(got, want) {
		t.Errorf("replayed with headers %q, want %q", got, want)
	}
	s.until(r, "cdc_relay_dead_letters_replayed_total", 2)
	for _, l := range s.WaitLetters("replayed", 2) {
		if l.Replays != 1 {
			t.Errorf("replayed %d times, want once", l.Replays)
		}
	}

	s.Settled(s.Replay(ids(letters)...))
	s.Stop(r)
	s.Replay(ids(letters)...)
	r = s.Start(testenv.Settings{"resume.enabled": false}) // It would publish again whatever it takes for new.
	s.Settled(s.Insert("order", "k", "5"))
	s.holds(s.topic, "like the others", "3", "1 ", "2 ", "4", "5")
	s.Stop(r)
}

// own are the headers that the row itself has asked for.
func own(r testenv.Record) (out []string) {
	for _, h := range r.Headers {
		if h.Name != "id" && !strings.HasPrefix(h.Name, "cdc-relay-") {
			out = append(out, h.Name+"="+string(h.Value))
		}
	}
	return out
}

// A replay that is refused again is the same dead letter again, and so on until it is not: the number tells how often. The
// command says what came of it.
func TestReplayRefusedAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(nil)
	s.Settled(s.Insert("order", "k", "1", large("2 "), "3"))
	first := s.WaitLetters("dead", 1)[0]
	config := s.WriteConfig(nil)
	if res := s.Run("dlq", "replay", "--config", config, "--reason", "too_large", "--wait"); res.Code != 4 {
		t.Errorf("dlq replay exits with %d, want 4: %s%s", res.Code, res.Stdout, res.Stderr)
	}
	again := s.WaitLetters("dead", 1)[0]
	if again.ID != first.ID || again.Replays != 1 || again.Reason != "too_large" || again.Attempts < first.Attempts {
		t.Errorf("got %+v, was %+v, want the same with one replay", again, first)
	}
	s.Settled(s.Insert("order", "k", "4"))

	// A relay that is started anew meets the replay again, and lets it be.
	s.Replay(first.ID)
	testenv.Until(t, patience, func(context.Context) error {
		if l := s.Letters()[0]; l.State != "dead" || l.Replays != 2 {
			return fmt.Errorf("dead letter is %s after %d replays", l.State, l.Replays)
		}
		return nil
	})
	r.Kill()
	s.widen()
	r = s.Start(nil)
	s.Settled(s.Insert("order", "k", "5"))
	s.holds(s.topic, "1", "3", "4", "5")
	if res := s.Run("dlq", "replay", "--config", config, "--reason", "too_large", "--wait"); res.Code != 0 {
		t.Errorf("dlq replay exits with %d, want 0: %s%s", res.Code, res.Stdout, res.Stderr)
	}
	records := s.holds(s.topic, "1", "3", "4", "5", "2 ")
	if count, _ := records[4].Header("cdc-relay-replay"); count != "3" {
		t.Errorf("replayed with count %q, want 3", count)
	}
	if l := s.WaitLetters("replayed", 1)[0]; l.ID != first.ID || l.Replays != 3 {
		t.Errorf("got %+v, want dead letter %d with three replays", l, first.ID)
	}
	s.Stop(r)
}

// A row whose topic can never be goes elsewhere by its replay; so does its lane's order.
func TestReplayElsewhere(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(nil)
	s.Insert("a/b", "k", "1", "2")
	letters := s.WaitLetters("dead", 2)
	res := s.Run("dlq", "replay", "--config", s.WriteConfig(nil), "--to-topic", s.topic, "--reason", "invalid_topic", "--wait")
	if res.Code != 0 {
		t.Errorf("dlq replay exits with %d: %s%s", res.Code, res.Stdout, res.Stderr)
	}
	for i, record := range s.holds(s.topic, "1", "2") {
		if id, _ := record.Header("id"); id != string(letters[i].MessageID) || string(record.Key) != "k" {
			t.Errorf("replayed as message %q with key %q, want %+v", id, record.Key, letters[i])
		}
	}
	s.WaitLetters("replayed", 2)
	s.Stop(r)
}

// Brokers delete by the record's time. A dead letter that has waited for a month gets the time of its replay.
func TestReplayOfOldLetter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(nil)
	s.Settled(s.Insert("order", "k", large("1 ")))
	letter := s.WaitLetters("dead", 1)[0]
	s.Exec(`UPDATE public.cdc_relay_dead_letter SET record_time = now() - interval '30 days', commit_time = now() - interval '30 days'`)
	s.widen()
	s.Settled(s.Replay(letter.ID))
	if age := time.Since(s.holds(s.topic, "1 ")[0].Time); age > time.Hour {
		t.Errorf("the record is %v old", age)
	}
	s.Stop(r)
}

// What others write to the log cannot bring anything to a topic: a role with nothing but LOGIN can at worst repeat a
// replay that was asked for.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := s.Start(nil)
	s.Settled(s.Insert("order", "k", "1", large("2 "), large("3 "), large("4 ")))
	letters := s.WaitLetters("dead", 3)
	s.widen()
	s.Settled(s.Replay(letters[0].ID))
	s.holds(s.topic, "1", "2 ")
	dead, replayed := letters[1].ID, letters[0].ID
	s.discard(letters[2].ID)

	role := "f" + s.Slot
	s.Exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'forged'`)
	forger := s.connectAs(role, "forged")
	for _, sql := range []string{
		`SELECT count(*) FROM public.cdc_relay_dead_letter`,
		`SELECT public.cdc_relay_dead_letter_replay(ARRAY[1]::bigint[])`,
		`UPDATE public.cdc_relay_dead_letter SET state = 'replayed', replays = 1`,
	} {
		if _, err := forger.Exec(t.Context(), sql); err == nil {
			t.Errorf("a role with nothing but LOGIN may run %s", sql)
		}
	}
	var contents []string
	for _, id := range append(ids(letters), 0, 999_999_999) {
		for _, count := range []int64{-1, 0, 1, 2} {
			if id != replayed || count != 1 { // see below
				contents = append(contents, fmt.Sprint(id, " ", count))
			}
		}
		contents = append(contents, fmt.Sprint(id))
	}
	contents = append(contents, "", " ", "99999999999999999999999 1", strings.Repeat("0", 32), strings.Repeat("f", 32), strings.Repeat("1 ", 100_000))
	if _, err := forger.Exec(t.Context(), `SELECT pg_logical_emit_message(transactional, prefix, convert_to(content, 'UTF8'))
		FROM unnest(ARRAY[true, false]) AS t (transactional), unnest($1::text[]) AS c (content),
			unnest(ARRAY['cdc-relay/replay', 'cdc-relay/dead', 'cdc-relay', 'cdc-relay/replay ']) AS p (prefix)`, contents); err != nil {
		t.Fatal(err)
	}
	s.Settled(s.Insert("order", "k", "5"))
	s.holds(s.topic, "1", "2 ", "5")
	if n := s.Count(s.topic); n != 3 {
		t.Errorf("the topic holds %d records, want 3", n)
	}
	s.ready(r)
	if n := scene.Metric(t, r, "cdc_relay_logical_messages_ignored_total"); n == 0 {
		t.Error("messages of nobody's are not counted")
	}
	for state, want := range map[string]int64{"dead": dead, "replayed": replayed, "discarded": letters[2].ID} {
		if l := s.WaitLetters(state, 1)[0]; l.ID != want || l.Error != letters[want-letters[0].ID].Error {
			t.Errorf("dead letter %d is %s", want, state)
		}
	}

	// The one thing: the replay that was asked for, once more.
	if _, err := forger.Exec(t.Context(), `SELECT pg_logical_emit_message(true, 'cdc-relay/replay', convert_to($1, 'UTF8'))`, fmt.Sprint(replayed, " 1")); err != nil {
		t.Fatal(err)
	}
	s.Settled(s.Insert("order", "k", "6"))
	seen := map[string]bool{"1": true, "2 ": true, "5": true, "6": true}
	for _, record := range s.Consume(s.topic, s.Count(s.topic), patience) {
		if !seen[head(string(record.Value))] {
			t.Errorf("%q is on the topic", head(string(record.Value)))
		}
	}
	s.Stop(r)
}
