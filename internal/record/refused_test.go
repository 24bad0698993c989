package record_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
)

// A row that cannot be published leaves behind what could be read of it, and says
// whether its payload is among that.
func TestRefusedRowKeepsWhatCouldBeRead(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.Topic = "{aggregatetype}.{type}"
	for name, tt := range map[string]struct {
		change                cell
		topic, id, key, value string
		headers               []string
		unread                bool
	}{
		"no topic":   {null("type", oidText), "", "6b1f", "42", `{"n": 1}`, []string{"id=6b1f", "content-type=application/json"}, false},
		"no id":      {null("id", oidUUID), "order.OrderPlaced", "", "42", `{"n": 1}`, []string{"type=OrderPlaced", "content-type=application/json"}, false},
		"no payload": {text("payload", oidBytea, `abc`), "order.OrderPlaced", "6b1f", "42", "", []string{"id=6b1f", "type=OrderPlaced"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cells := order(tt.change)
			var out publish.Record
			err := newMapper(t, c).Map(insert(relation(c.Tables[0], cells), cells), pos, commit, now, &out)
			var refused *record.RowError
			if !errors.As(err, &refused) || refused.Unread != tt.unread {
				t.Fatalf("got %v, want a row error, unread %v", err, tt.unread)
			}
			if out.Topic != tt.topic || string(out.ID) != tt.id || string(out.Key) != tt.key || string(out.Value) != tt.value ||
				!slices.Equal(listed(out.Headers), tt.headers) || out.Position != pos || !out.CommitTime.Equal(commit) || out.Time.IsZero() {
				t.Errorf("what is left is %+v, headers %q", out, listed(out.Headers))
			}
		})
	}
}

// No row can pretend to be a replay.
func TestReplayHeaderIsReserved(t *testing.T) {
	t.Parallel()
	cells := order(text("headers", oidJSONB, `{"cdc-relay-replay": "1", "a": "b"}`))
	m, out := newMapper(t, defaults()), publish.Record{}
	if err := m.Map(insert(relation(defaults().Tables[0], cells), cells), pos, commit, now, &out); err != nil {
		t.Fatal(err)
	}
	if got := listed(out.Headers); !slices.Contains(got, "a=b") || slices.Contains(got, "cdc-relay-replay=1") || m.Dropped().Reserved != 1 {
		t.Errorf("headers %q", got)
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.Columns = map[string]string{"id": "Message Id"}
	if id, payload := newMapper(t, c).Columns(); id != "Message Id" || payload != "payload" {
		t.Errorf("got %q and %q", id, payload)
	}
}
