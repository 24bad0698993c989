package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// now is when the tests take place.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// command has the flags of a command line parsed and returns the filter.
func command(t *testing.T, args ...string) (*cobra.Command, *letterFilter) {
	t.Helper()
	f := letterFilter{source: new(source)}
	cmd := &cobra.Command{Use: "test"}
	f.flags(cmd)
	f.allFlag(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return cmd, &f
}

func TestFilter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want deadletter.Filter
	}{
		{nil, deadletter.Filter{}},
		{
			[]string{"--type", "OrderPlaced", "--topic", "t", "--aggregate", "k", "--reason", "too_large", "--id", "m"},
			deadletter.Filter{Type: "OrderPlaced", Topic: "t", Aggregate: "k", Reason: deadletter.TooLarge, ID: "m"},
		},
		{[]string{"9", "17", "9"}, deadletter.Filter{Letters: []int64{9, 17}}},
		{[]string{"--since", "24h"}, deadletter.Filter{Since: now.Add(-24 * time.Hour)}},
		{[]string{"--since", "7d", "--until", "1d"}, deadletter.Filter{Since: now.AddDate(0, 0, -7), Until: now.AddDate(0, 0, -1)}},
		{[]string{"--since", "2026-11-29"}, deadletter.Filter{Since: now.Add(-36 * time.Hour)}},
		{[]string{"--until", "2026-11-30T13:00:00+01:00"}, deadletter.Filter{Until: now}},
		{[]string{"--until", "2026-11-30T12:00:00"}, deadletter.Filter{Until: now}},
		{[]string{"--until", "2026-11-30 12:00:00Z"}, deadletter.Filter{Until: now}}, // as list shows it
	} {
		cmd, f := command(t, tt.args...)
		got, err := f.read(cmd, cmd.Flags().Args(), now)
		if err != nil {
			t.Errorf("%v: %v", tt.args, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v: %s", tt.args, diff)
		}
	}
}

func TestWrongFilter(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`unknown reason "to_large"`:              {"--reason", "to_large"},
		"--type is empty":                        {"--type", ""},
		"--since is empty":                       {"--since", ""},
		`--since "yesterday" is not a time`:      {"--since", "yesterday"},
		`--until "-24h" is not a time`:           {"--until=-24h"},
		`--until "-1d" is not a time`:            {"--until=-1d"},
		"--since is not before --until":          {"--since", "1h", "--until", "2h"},
		`"0" is not the number of a dead letter`: {"0"},
		`"order-7" is not the number`:            {"order-7"},
	} {
		cmd, f := command(t, args...)
		_, err := f.read(cmd, cmd.Flags().Args(), now)
		exit, ok := errors.AsType[*exitError](err)
		if !ok || exit.code != exitUsage || !strings.Contains(err.Error(), want) || exit.next == "" {
			t.Errorf("%v: got %v, want a usage error with %q", args, err, want)
		}
	}
}

// What changes dead letters never takes all of them for want of a filter.
func TestChosen(t *testing.T) {
	t.Parallel()
	for args, ok := range map[string]bool{
		"": false, "--all": true, "17": true, "--reason too_large": true, "--until 1d": true,
		"--all 17": false, "--all --topic t": false,
	} {
		cmd, f := command(t, strings.Fields(args)...)
		if err := f.chosen(cmd, cmd.Flags().Args()); (err == nil) != ok {
			t.Errorf("%q: got %v", args, err)
		}
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Größe {\"a\": 1}":          "Größe {\"a\": 1}",
		"\x1b[2J\x1b]0;owned\a":     `\x1b[2J\x1b]0;owned\a`,
		"a\nb\tc\r":                 `a\nb\tc\r`,
		"\u202egnp.exe":             `\u202egnp.exe`, // right to left
		"zero\u200bwidth":           `zero\u200bwidth`,
		"\x9b31m":                   `\x9b31m`, // a control of eight bits, no UTF-8
		"\u009b31m":                 `\u009b31m`,
		"\xff\x00":                  `\xff\x00`,
		"it's 日本語":                  "it's 日本語",
		"\U000e0041":                `\U000e0041`, // an invisible tag
		"a real replacement \ufffd": "a real replacement \ufffd",
	} {
		if got := printable(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	table := newTable(">NUMBER", "REASON", "ERROR")
	table.add("7", "too_large", "größer")
	table.add("1234567", "attempts", "")
	var out strings.Builder
	table.print(&out)
	want := `
 NUMBER  REASON     ERROR
      7  too_large  größer
1234567  attempts
`
	if diff := cmp.Diff(want[1:], out.String()); diff != "" {
		t.Error(diff)
	}
}

// letter is one with something in every field.
func letter() deadletter.Letter {
	return deadletter.Letter{
		ID: 17, Slot: "s", SystemID: "1", State: deadletter.Dead,
		Position: position.Position{Commit: 0x100, LSN: 0x80},
		Table:    "public.outbox", MessageID: []byte("m-1"), Topic: "orders", Key: []byte("k\x1b[2J"), Value: []byte("{}\n\x1b[2J\xff"),
		ValueBytes: 8, ValueKept: true, Type: "OrderPlaced",
		Headers:    []deadletter.Header{{Name: "id", Value: []byte("m-1")}, {Name: "secret", Value: []byte("hunter2\r")}, {Name: "none"}},
		RecordTime: now, CommitTime: now, Reason: deadletter.TooLarge, Error: "record too large", Attempts: 3,
		FirstFailed: now.Add(-time.Minute), LastFailed: now, MayBePublished: true, Ordinal: 5, Marker: "m",
		Replays: 2, ReplayTopic: "orders.fixed", Created: now, Changed: now,
	}
}

func TestPrintLetter(t *testing.T) {
	t.Parallel()
	l := letter()
	const fields = `
number            17
state             dead since 2026-11-30 12:00:00Z, 2 replays, the last to topic orders.fixed
reason            too_large
error             record too large
attempts          3
failed            2026-11-30 11:59:00Z first, 2026-11-30 12:00:00Z last
on the topic      possible: a broker did not answer
message id        m-1
type              OrderPlaced
topic             orders
key               k\x1b[2J
record time       2026-11-30 12:00:00Z
table             public.outbox
committed         2026-11-30 12:00:00Z at 0/100
slot              s
value             8 bytes
`
	for payload, want := range map[bool]string{
		false: fields + "headers           id, secret, none\n",
		true:  fields + "\nheaders\n  id: m-1\n  secret: hunter2\\r\n  none: null\n\nvalue\n{}\n\\x1b[2J\\xff\n",
	} {
		var out strings.Builder
		printLetter(&out, &entry{Letter: l}, payload)
		if diff := cmp.Diff(want[1:], out.String()); diff != "" {
			t.Errorf("payload %v: %s", payload, diff)
		}
	}
}

// Without --show-payload neither the value nor a header's value is in the JSON.
func TestJSON(t *testing.T) {
	t.Parallel()
	l := letter()
	for payload, want := range map[bool]string{
		false: `[
 {"id":17,"slot":"s","state":"dead","reason":"too_large","error":"record too large","attempts":3,` +
			`"first_failed_at":"2026-11-30T11:59:00Z","last_failed_at":"2026-11-30T12:00:00Z","may_be_published":true,` +
			`"table":"public.outbox","message_id":"m-1","type":"OrderPlaced","topic":"orders","key":"k\u001b[2J",` +
			`"headers":[{"name":"id"},{"name":"secret"},{"name":"none"}],"value_bytes":8,"value_kept":true,` +
			`"record_time":"2026-11-30T12:00:00Z","committed_at":"2026-11-30T12:00:00Z","commit_lsn":"0/100","change_lsn":"0/80",` +
			`"replays":2,"replay_topic":"orders.fixed","created_at":"2026-11-30T12:00:00Z","changed_at":"2026-11-30T12:00:00Z"}
]
`,
		true: `[
 {"id":17,"slot":"s","state":"dead","reason":"too_large","error":"record too large","attempts":3,` +
			`"first_failed_at":"2026-11-30T11:59:00Z","last_failed_at":"2026-11-30T12:00:00Z","may_be_published":true,` +
			`"table":"public.outbox","message_id":"m-1","type":"OrderPlaced","topic":"orders","key":"k\u001b[2J",` +
			`"headers":[{"name":"id","value":"m-1"},{"name":"secret","value":"hunter2\r"},{"name":"none"}],` +
			`"value_bytes":8,"value_kept":true,"value_base64":"e30KG1sySv8=",` +
			`"record_time":"2026-11-30T12:00:00Z","committed_at":"2026-11-30T12:00:00Z","commit_lsn":"0/100","change_lsn":"0/80",` +
			`"replays":2,"replay_topic":"orders.fixed","created_at":"2026-11-30T12:00:00Z","changed_at":"2026-11-30T12:00:00Z"}
]
`,
	} {
		var out strings.Builder
		array := jsonArray{out: &out}
		if err := errors.Join(array.add(toJSON(&entry{Letter: l}, payload)), array.end()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("payload %v: %s", payload, diff)
		}
	}
	var out strings.Builder
	if err := (&jsonArray{out: &out}).end(); err != nil || out.String() != "[]\n" {
		t.Errorf("no elements: %q, %v", out.String(), err)
	}
}

// The table of list shows no payload either, and tells a null from an empty one when it may.
func TestLetterTable(t *testing.T) {
	t.Parallel()
	long := letter()
	long.Error, long.MayBePublished = `record for topic "orders" cannot be published: `+strings.Repeat("ä", 200), false
	null := deadletter.Letter{ID: 1, State: deadletter.Discarded, ValueBytes: -1, Key: []byte{}, Reason: deadletter.InvalidRow}
	gone := deadletter.Letter{ID: 2, State: deadletter.Dead, ValueBytes: 1 << 30}
	for payload, want := range map[bool]string{
		false: `
NUMBER  SINCE                 STATE      REASON       TYPE         TOPIC   KEY       ERROR
    17  2026-11-30 12:00:00Z  dead       too_large    OrderPlaced  orders  k\x1b[2J  ` + strings.Repeat("ä", 79) + `…
     1  –                     discarded  invalid_row  –            –       ""        –
     2  –                     dead                    –            –       –         –
`,
		true: `
NUMBER  SINCE                 STATE      REASON       TYPE         TOPIC   KEY       ERROR                                                                             VALUE
    17  2026-11-30 12:00:00Z  dead       too_large    OrderPlaced  orders  k\x1b[2J  ` + strings.Repeat("ä", 79) + `…  {}\n\x1b[2J\xff
     1  –                     discarded  invalid_row  –            –       ""        –                                                                                 null
     2  –                     dead                    –            –       –         –                                                                                 not kept
`,
	} {
		table := newLetterTable(false, nil, payload)
		for _, l := range []*deadletter.Letter{&long, &null, &gone} {
			table.letter(&entry{Letter: *l})
		}
		var out strings.Builder
		table.print(&out)
		if diff := cmp.Diff(want[1:], out.String()); diff != "" {
			t.Errorf("payload %v: %s", payload, diff)
		}
	}
}

func TestTopicName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"orders": true, "a.b_c-D9": true, strings.Repeat("x", 249): true, "...": true,
		"": false, ".": false, "..": false, "a b": false, "a/b": false, "ä": false, strings.Repeat("x", 250): false,
	} {
		if topicName(name) != want {
			t.Errorf("%q: want %v", name, want)
		}
	}
}

func TestProgressLine(t *testing.T) {
	t.Parallel()
	p := progress{verb: "replayed", total: 10_000, began: now}
	for done, want := range map[int64]string{
		0: "replayed 0 of 10000", 4000: "replayed 4000 of 10000, 400 a second, 15s left", 10_000: "replayed 10000 of 10000",
	} {
		p.done = done
		if got := p.line(now.Add(10 * time.Second)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", time.Minute: "1m", 47 * time.Hour: "47h", 50 * time.Hour: "2d",
	} {
		if got := ageText(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}
