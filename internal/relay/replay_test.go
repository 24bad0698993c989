package relay

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// waiting is a dead letter that has been replayed n times.
func waiting(n int) *deadletter.Letter {
	return &deadletter.Letter{
		Slot: "s", SystemID: "1", Position: position.Position{Commit: 0x500, LSN: 0x400, Kind: position.Row},
		State: deadletter.Replayed, Replays: n, Topic: "t", Key: []byte("k"), Value: []byte("payload"), ValueBytes: 7, ValueKept: true,
		MessageID: []byte("id-dead"), Headers: []deadletter.Header{{Name: "id", Value: []byte("id-dead")}},
		RecordTime: time.Now().Add(-time.Hour), Reason: deadletter.TooLarge, Marker: deadletter.NewMarker(), Table: "public.outbox",
	}
}

// told runs a session whose box has a letter, and sends the transaction of a message.
func told(t *testing.T, letter *deadletter.Letter, prefix, content string) (*session, *letterBox, *brokers, *walsender) {
	t.Helper()
	kafka := newBrokers()
	r, box := newKeepingRelay(t, kafka, io.Discard)
	if letter != nil {
		box.write(letter)
	}
	s, server := begun(t, r)
	running(t, s)
	server.begin(0x2000)
	server.logical(0x1f00, 1, prefix, content)
	server.commit(0x2000, 0x2030)
	return s, box, kafka, server
}

// A replay goes out with all that the letter has, and the number of the replay.
func TestReplay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*deadletter.Letter, *letterBox)
		topic  string
	}{
		"as it was":                        {func(*deadletter.Letter, *letterBox) {}, "t"},
		"to another topic":                 {func(l *deadletter.Letter, _ *letterBox) { l.ReplayTopic = "elsewhere" }, "elsewhere"},
		"before others see it":             {func(_ *deadletter.Letter, b *letterBox) { b.locked = true }, "t"},
		"with its value out of the outbox": {func(l *deadletter.Letter, b *letterBox) { b.value, l.Value, l.ValueKept = l.Value, nil, false }, "t"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			letter := waiting(3)
			kafka := newBrokers()
			r, box := newKeepingRelay(t, kafka, io.Discard)
			box.write(letter)
			c.change(letter, box)
			s, server := begun(t, r)
			running(t, s)
			server.begin(0x2000)
			server.logical(0x1f00, 1, deadletter.ReplayPrefix, "1 3")
			server.commit(0x2000, 0x2030)
			// The letter's own headers, then the number, then where the message is.
			kafka.wantBatch(t, "payload", "id-dead", "cdc-relay-replay\x023",
				".0000000000002000.0000000000001f00.m.", fmt.Sprintf("%016x", position.HashID([]byte("id-dead"))))
			unmoved(t, s)
			kafka.acknowledge()
			server.waitFlushed(t, 0x2030)
			waitFor(t, func() bool { return kafka.batches(c.topic) == 1 })
		})
	}
}

// A message is never believed: what the table does not say is not sent. Nor does a
// forged one hold the position for good.
func TestForgedReplays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		letter          *deadletter.Letter
		prefix, content string
	}{
		"of no letter":                {nil, deadletter.ReplayPrefix, "1 1"},
		"that was not asked for":      {waiting(1), deadletter.ReplayPrefix, "1 2"},
		"that has been":               {waiting(2), deadletter.ReplayPrefix, "1 1"},
		"of one that is dead":         {refusedAgain(waiting(1)), deadletter.ReplayPrefix, "1 1"},
		"of one never replayed":       {refusedAgain(waiting(0)), deadletter.ReplayPrefix, "1 0"},
		"with something else in it":   {waiting(1), deadletter.ReplayPrefix, "1 1; "},
		"under another prefix":        {waiting(1), "cdc-relay/replay2", "1 1"},
		"a marker of nobody":          {nil, deadletter.MarkerPrefix, deadletter.NewMarker()},
		"something under that prefix": {nil, deadletter.MarkerPrefix, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, box, kafka, server := told(t, c.letter, c.prefix, c.content)
			server.keepalive(0x2100)
			server.waitFlushed(t, 0x2100)
			if len(kafka.arrived) > 0 || len(box.arrived) > 0 {
				t.Errorf("%d batches, %d letters", len(kafka.arrived), len(box.arrived))
			}
		})
	}
}

func refusedAgain(l *deadletter.Letter) *deadletter.Letter {
	l.State, l.ReplayMarker = deadletter.Dead, deadletter.NewMarker()
	return l
}

// One that is not transactional comes whether or not its transaction was committed.
func TestReplayOutsideOfATransaction(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r, box := newKeepingRelay(t, kafka, io.Discard)
	box.write(waiting(1))
	s, server := begun(t, r)
	running(t, s)
	server.logical(0x1f00, 0, deadletter.ReplayPrefix, "1 1")
	server.keepalive(0x2000)
	server.waitFlushed(t, 0x2000)
	if len(kafka.arrived) > 0 {
		t.Errorf("sent %q", <-kafka.arrived)
	}
}

// A replay that was refused in an earlier session holds the position until the stream
// has brought what was in the log by then.
func TestRefusedReplayIsMetAgain(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r, box := newKeepingRelay(t, kafka, io.Discard)
	box.end = 0x4000
	box.write(refusedAgain(waiting(1)))
	s, server := begun(t, r)
	running(t, s)
	server.begin(0x2000)
	server.logical(0x1f00, 1, deadletter.ReplayPrefix, "1 1")
	server.commit(0x2000, 0x2030)
	server.relation("outbox", outboxColumns...)
	server.single(0x3000, "behind")
	kafka.wantBatch(t, "behind")
	kafka.acknowledge()
	waitFor(t, func() bool { return r.publisher.Snapshot().Rows == 0 })
	unmoved(t, s)
	server.keepalive(0x4000)
	server.waitFlushed(t, 0x4000)
}

// A replay that is refused puts the same letter back, and the position waits for the
// marker; so does one whose value is nowhere.
func TestRefusedReplay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*deadletter.Letter)
		lane   bool
		want   deadletter.Reason
	}{
		"by the broker":     {func(*deadletter.Letter) {}, true, deadletter.TooLarge},
		"for its topic":     {func(l *deadletter.Letter) { l.ReplayTopic = "no topic" }, false, deadletter.InvalidTopic},
		"without its value": {func(l *deadletter.Letter) { l.Value, l.ValueKept = nil, false }, false, deadletter.ValueGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			letter := waiting(2)
			c.change(letter)
			s, box, kafka, server := told(t, letter, deadletter.ReplayPrefix, "1 2")
			if c.lane {
				kafka.wantBatch(t, "payload")
				kafka.refuse()
			}
			back := box.wantLetter(t)
			if back.ID != 1 || back.Replays != 2 || back.Reason != c.want || back.Slot != "s" {
				t.Errorf("put back as %+v", back)
			}
			for _, h := range back.Headers {
				if h.Name == headerReplay {
					t.Error("the number of the replay became a header of the letter")
				}
			}
			waitFor(t, func() bool { return s.r.publisher.Snapshot().Rows == 0 })
			unmoved(t, s)
			server.marked(0x3000, back)
			server.waitFlushed(t, 0x3030)
			if letter.State != deadletter.Dead {
				t.Errorf("the letter is %s", letter.State)
			}
		})
	}
}

// A table that cannot be read holds the reader, and a stop gets through.
func TestReplayWaitsForTheStore(t *testing.T) {
	t.Parallel()
	for name, heals := range map[string]bool{"that heals": true, "until a stop": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kafka := newBrokers()
			r, box := newKeepingRelay(t, kafka, io.Discard)
			box.write(waiting(1))
			box.reading = &catalog.CheckError{Problem: "away", Class: catalog.Unreachable}
			s, server := begun(t, r)
			stop := running(t, s)
			server.begin(0x2000)
			server.logical(0x1f00, 1, deadletter.ReplayPrefix, "1 1")
			server.commit(0x2000, 0x2030)
			waitFor(t, func() bool { return strings.Contains(strings.Join(r.Status().Problems, "\n"), "dead letters: ") })
			if heals {
				box.set(func() { box.reading = nil })
				kafka.wantBatch(t, "payload")
				kafka.acknowledge()
				server.waitFlushed(t, 0x2030)
				waitFor(t, func() bool { return r.Status().Ready() })
				return
			}
			began := time.Now()
			_ = stop()
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("takes %v", took)
			}
		})
	}
}

// The time of a record is the one it had, unless brokers would delete or refuse it.
func TestTimeOfAReplay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		recorded time.Time
		reason   deadletter.Reason
		same     bool
	}{
		"an hour ago":      {now.Add(-time.Hour), deadletter.TooLarge, true},
		"a month ago":      {now.Add(-30 * 24 * time.Hour), deadletter.TooLarge, false},
		"that was refused": {now.Add(-time.Hour), deadletter.InvalidTimestamp, false},
	} {
		l := waiting(1)
		l.RecordTime, l.Reason = c.recorded, c.reason
		if got := letterRecord(l, nil, 1).Time; got.Equal(c.recorded) != c.same || !c.same && got.Before(now) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Metrics count the letters that wait, while the slot is ours.
func TestWaitingLettersAreCounted(t *testing.T) {
	t.Parallel()
	r, box := newKeepingRelay(t, newBrokers(), io.Discard)
	box.write(waiting(1))
	s, _ := begun(t, r)
	var u upkeep
	u.round(context.Background(), s.letters)
	count := func() int { return collected(r.metrics.letters) + collected(r.metrics.oldest) }
	if n := count(); n != 2 {
		t.Errorf("%d series", n)
	}
	box.set(func() { clear(box.byID) })
	u.counted = time.Time{}
	u.round(context.Background(), s.letters)
	if n := count(); n != 0 {
		t.Errorf("%d series of no letter", n)
	}
	box.write(waiting(1))
	u.counted = time.Time{}
	u.round(context.Background(), s.letters)
	s.letters.close()
	if n := count(); n != 0 {
		t.Errorf("%d series without the slot", n)
	}
}
