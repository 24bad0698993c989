package publish_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestRefusedRecords: rows that the broker refuses become dead letters, in order, and
// all others are published in order. Those that it names go alone at once.
func TestRefusedRecords(t *testing.T) {
	for _, names := range []bool{true, false} {
		for code, reason := range map[kafka.Error]string{
			kafka.InvalidRecord: publish.ReasonInvalidRecord, kafka.InvalidTimestamp: publish.ReasonInvalidTimestamp,
		} {
			t.Run(fmt.Sprintf("%s names=%v", reason, names), func(t *testing.T) {
				m, s := newModel("t", 1), new(letters)
				bad := []string{"3", "17", "18", "39"}
				m.names, m.refusal = names, code
				m.refuse = func(v string) bool { return slices.Contains(bad, v) }
				run(t, keeping(s), m, func(r *rig) {
					r.putBatch(40)
					r.drain(time.Second)
					var want []string
					for i := range 40 {
						if v := fmt.Sprint(i); !slices.Contains(bad, v) {
							want = append(want, v)
						}
					}
					r.wantValues("t", 0, strings.Join(want, " "))
					if got, want := s.said(), fmt.Sprintf("3:%[1]s:1 17:%[1]s:1 18:%[1]s:1 39:%[1]s:1", reason); got != want {
						t.Errorf("dead letters %q, want %q", got, want)
					}
					// One row after the start, the batch, then what lies between the four.
					if got := r.requests(); names && got != 1+1+3+4 {
						t.Errorf("%d requests, want 9", got)
					}
					if got := r.p.Decided(); got != 36 {
						t.Errorf("%d rows decided, want 36", got)
					}
					r.wantSettled()
				})
			})
		}
	}
}

// TestRefusal: a refusal has the whole row, as it was published.
func TestRefusal(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.refuse = func(string) bool { return true }
	run(t, keeping(s), m, func(r *rig) {
		committed := time.Now().Add(-time.Minute)
		r.settle(time.Second)
		full := publish.Record{
			Topic: "t", Key: []byte("k"), Value: bytes.Repeat([]byte("v"), 20_000), ID: []byte("id-x"),
			Headers: []publish.Header{{Name: "a", Value: []byte("1")}, {Name: "", Value: nil}, {Name: "a", Value: []byte{}}},
			Time:    time.Now().Truncate(time.Millisecond), CommitTime: committed,
			Position: position.Position{Commit: 7, LSN: 8, Kind: position.Message, Index: 2}, Letter: 5,
		}
		null := publish.Record{Topic: "t", ID: []byte("id-y"), Time: time.Now().Truncate(time.Millisecond), Position: position.Position{Commit: 9}}
		empty := publish.Record{Topic: "t", Key: []byte{}, Value: []byte{}, ID: []byte("id-z"), Time: time.Now(), Position: position.Position{Commit: 10}}
		for _, rec := range []*publish.Record{&full, &null, &empty} {
			r.publish(rec)
		}
		r.drain(time.Second)
		if len(s.kept) != 3 {
			t.Fatalf("%d dead letters, want 3", len(s.kept))
		}
		got := s.kept[0]
		if got.Topic != full.Topic || string(got.Key) != "k" || !bytes.Equal(got.Value, full.Value) || string(got.ID) != "id-x" ||
			!got.Time.Equal(full.Time) || !got.CommitTime.Equal(committed) || got.Position != full.Position || got.Letter != 5 || got.Seq != 1 {
			t.Errorf("got %+v", got)
		}
		if fmt.Sprint(got.Headers) != fmt.Sprint(full.Headers) || got.Headers[1].Value != nil || got.Headers[2].Value == nil {
			t.Errorf("headers %v, want %v", got.Headers, full.Headers)
		}
		if got.First.IsZero() || !got.First.Equal(got.Last) || got.Err == nil {
			t.Errorf("first %v, last %v, err %v", got.First, got.Last, got.Err)
		}
		if got := s.kept[1]; got.Key != nil || got.Value != nil || !got.CommitTime.IsZero() {
			t.Errorf("nulls became %+v", got)
		}
		if got := s.kept[2]; got.Key == nil || got.Value == nil {
			t.Errorf("empty values became nulls: %+v", got)
		}
	})
}

// TestTooLargeIsRefused: what is too large even alone is a dead letter; neighbours of
// the same key are delivered in order.
func TestTooLargeIsRefused(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.maxBytes = 2048
	run(t, keeping(s), m, func(r *rig) {
		r.putBatch(10)
		big := r.record(10, "t", "key")
		big.Value = bytes.Repeat([]byte("x"), 3000)
		r.publish(big)
		r.n++
		r.put(10)
		r.drain(time.Second)
		r.wantValues("t", 0, sequenceOf(0, 10)+" "+sequenceOf(11, 21))
		if len(s.kept) != 1 || s.kept[0].Reason != publish.ReasonTooLarge || len(s.kept[0].Value) != 3000 {
			t.Errorf("dead letters %s", s.said())
		}
		r.wantSettled()
	})
}

// TestInvalidTopicIsRefused: a topic that the broker does not allow to be written to is
// the fault of each of its rows.
func TestInvalidTopicIsRefused(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	run(t, keeping(s), m, func(r *rig) {
		r.put(1)
		r.drain(time.Second)
		m.with(func() { m.topics["t"][0].faults = []fault{invalidTopic} })
		r.putBatch(3)
		r.drain(time.Second)
		if got, want := s.said(), "1:invalid_topic:1 2:invalid_topic:1 3:invalid_topic:1"; got != want {
			t.Errorf("dead letters %q, want %q", got, want)
		}
	})
}

// TestInvalidTopicHalts: without dead letters it halts, and is repeated unchanged.
func TestInvalidTopicHalts(t *testing.T) {
	m := newModel("t", 1)
	m.topics["t"][0].faults = []fault{requestLost, invalidTopic}
	run(t, publish.Config{}, m, func(r *rig) {
		r.putBatch(3)
		r.settle(time.Second)
		if s := r.p.Snapshot(); len(s.Lanes) != 1 || !s.Lanes[0].Halted {
			t.Errorf("lanes %+v, want halted", s.Lanes)
		}
		r.drain(time.Minute)
		r.wantValues("t", 0, "0 1 2")
	})
}

// TestStoreFails: a row that does not become a dead letter halts its lane, and is tried
// again like any other: what was wrong with it may have been put right.
func TestStoreFails(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	bad := true
	m.refuse = func(v string) bool { return bad && v == "1" }
	s.failFn = func(*publish.Refusal) error { return errStore }
	run(t, keeping(s), m, func(r *rig) {
		r.putBatch(4)
		r.settle(29 * time.Second)
		r.wantValues("t", 0, "0")
		if got := r.oldest(); got != 2 {
			t.Errorf("oldest = %d, want 2: the row is neither published nor kept", got)
		}
		l := r.p.Snapshot().Lanes
		if len(l) != 1 || !l[0].Halted || !strings.Contains(l[0].Reason, "id-1") || !strings.Contains(l[0].Reason, errStore.Error()) {
			t.Errorf("lanes %+v, want halted, with row and reason", l)
		}
		if s.calls() != 1 {
			t.Errorf("asked %d times, want once in 30 seconds", s.calls())
		}
		r.settle(30 * time.Second)
		if s.calls() != 2 {
			t.Errorf("asked %d times, want twice in a minute", s.calls())
		}
		m.with(func() { bad = false })
		r.drain(31 * time.Second)
		r.wantValues("t", 0, "0 1 2 3")
		if s.values() != "" || len(r.p.Snapshot().Problems()) > 0 {
			t.Errorf("dead letters %q, problems %v", s.values(), r.p.Snapshot().Problems())
		}
	})
}

// TestStoreRecovers: the halt ends with the next answer of the store.
func TestStoreRecovers(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.refuse = func(v string) bool { return v == "1" }
	s.failFn = func(*publish.Refusal) error { return errStore }
	run(t, keeping(s), m, func(r *rig) {
		r.put(3)
		r.settle(time.Second)
		s.fail(nil)
		r.drain(31 * time.Second)
		r.wantValues("t", 0, "0 2")
		if s.values() != "1" || len(r.p.Snapshot().Problems()) > 0 || r.logged("publishing again") != 1 {
			t.Errorf("dead letters %q, problems %v", s.values(), r.p.Snapshot().Problems())
		}
	})
}

// TestStoreIsSlow: the lane waits, shows it, and holds the position; others go on.
func TestStoreIsSlow(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	m.grow("other", 1)
	m.refuse = func(v string) bool { return v == "0" }
	run(t, keeping(s), m, func(r *rig) {
		s.hold = make(chan struct{})
		r.put(2)
		r.publish(r.record(100, "other", "key"))
		r.settle(10 * time.Second)
		r.wantValues("other", 0, "100")
		r.wantValues("t", 0, "")
		if p := strings.Join(r.p.Snapshot().Problems(), "\n"); !strings.Contains(p, "t[0] has waited for 10s for a dead letter") {
			t.Errorf("problems %q", p)
		}
		if r.oldest() != 1 {
			t.Errorf("oldest = %d, want 1", r.oldest())
		}
		close(s.hold)
		r.drain(time.Second)
		r.wantValues("t", 0, "1")
		if p := r.p.Snapshot().Problems(); len(p) > 0 {
			t.Errorf("problems %q", p)
		}
	})
}

// TestSessionEndsWhileAsking: the answer for a row of a past session drops no row of the
// next one, though it has the same number; and the bytes that were given away stay.
func TestSessionEndsWhileAsking(t *testing.T) {
	m, s := newModel("t", 1), new(letters)
	bad := true
	m.refuse = func(string) bool { return bad }
	run(t, keeping(s), m, func(r *rig) {
		s.hold = make(chan struct{})
		var value string
		release := make(chan struct{})
		s.after = func(f *publish.Refusal) {
			<-release
			value = string(f.Value)
		}
		r.put(1)
		r.settle(time.Second)
		m.with(func() { bad = false })
		r.reconnect(0)
		r.n = 100 // Other rows, the first with the number of the one in hand.
		r.put(2)
		r.settle(time.Second)
		r.wantValues("t", 0, "")
		s.hold = nil
		close(release)
		r.drain(time.Second)
		r.wantValues("t", 0, "100 101")
		if value != "0" {
			t.Errorf("the value became %q while it was in hand", value)
		}
	})
}

// TestLaneGivenUpWhileAsking: nor does it drop one of a lane that was given up.
func TestLaneGivenUpWhileAsking(t *testing.T) {
	m, s := newModel("t", 2), new(letters)
	m.refuse = func(v string) bool { return v == "0" }
	run(t, keeping(s), m, func(r *rig) {
		s.hold = make(chan struct{})
		r.put(2)
		r.settle(2 * time.Second)
		m.with(func() { m.topics["t"] = []*modelPartition{newPartition()} })
		r.settle(3 * time.Second)
		close(s.hold)
		r.settle(time.Second)
		if got := r.oldest(); got != 1 {
			t.Errorf("oldest = %d, want 1: what went with the lane holds the position", got)
		}
		r.reconnect(0)
		r.dead(0)
		r.publish(r.record(1, "t", "key"))
		r.drain(time.Minute)
		r.wantValues("t", 0, "1")
	})
}
