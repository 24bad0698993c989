package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

func newDLQShow(a *app, src *source) *cobra.Command {
	var payload bool
	var o output
	cmd := &cobra.Command{
		Use:   "show NUMBER…",
		Short: "Show all about single dead letters",
		Long: `show prints all that is kept about dead letters, by their numbers; headers' values and the
payload with --show-payload only. With -o json it prints an array of the objects that
"cdc-relay dlq list --help" describes. It exits 3 when one does not exist.`,
		Example: `  cdc-relay dlq show 17
  cdc-relay dlq show 17 --show-payload
  cdc-relay dlq show 17 --show-payload -o json | jq -r '.[0].value'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			ids, err := readNumbers(cmd, args)
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				return usagef("cdc-relay dlq list", "no number is given; list shows them")
			}
			return a.withLetters(cmd, src, func(l *letters) error {
				return l.show(cmd, ids, payload, o.json())
			})
		},
	}
	a.databaseFlag(cmd)
	o.flag(cmd)
	cmd.Flags().BoolVar(&payload, "show-payload", false, "show headers' values and the payload, too")
	return cmd
}

func (l *letters) show(cmd *cobra.Command, ids []int64, payload, asJSON bool) error {
	out := cmd.OutOrStdout()
	array := jsonArray{out: out}
	var missing []string
	shown := 0
	for _, id := range ids {
		letter, found, err := l.get(cmd.Context(), l.owner, id)
		if err != nil {
			return err
		}
		if !found {
			missing = append(missing, strconv.FormatInt(id, 10))
			continue
		}
		if asJSON {
			if err := array.add(toJSON(letter, payload)); err != nil {
				return err
			}
			continue
		}
		if shown > 0 {
			fmt.Fprintln(out)
		}
		shown++
		printLetter(out, letter, payload)
	}
	if asJSON {
		if err := array.end(); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return &exitError{
			fmt.Errorf("%s has no dead letter %s", l.whose(), strings.Join(missing, ", ")), exitNo,
			cmd.Parent().CommandPath() + " list --state all",
		}
	}
	return nil
}

// printLetter shows a dead letter as names and values.
func printLetter(out io.Writer, l *entry, payload bool) {
	field := func(name, value string) { fmt.Fprintf(out, "%-17s %s\n", name, value) }
	field("number", strconv.FormatInt(l.ID, 10))
	field("state", stateText(&l.Letter))
	field("reason", orNone(string(l.Reason)))
	field("error", orNone(l.Error))
	if l.inbox != nil {
		printPlace(field, l)
	} else {
		field("attempts", strconv.Itoa(l.Attempts))
		field("failed", showTime(l.FirstFailed)+" first, "+showTime(l.LastFailed)+" last")
		published := "no"
		if l.MayBePublished {
			published = "possible: a broker did not answer"
		}
		field("on the topic", published)
	}
	field("message id", cellBytes(l.MessageID, maxField))
	field("type", orNone(l.Type))
	field("topic", orNone(l.Topic))
	field("key", cellBytes(l.Key, maxField))
	field("record time", showTime(l.RecordTime))
	if l.inbox == nil {
		field("table", orNone(l.Table))
		field("committed", showTime(l.CommitTime)+" at "+l.Position.Commit.String())
		field("slot", printable(l.Slot))
	}
	field("value", valueText(&l.Letter))
	printRecord(out, field, &l.Letter, payload)
}

func orNone(text string) string {
	if text == "" {
		return "–"
	}
	return printable(text)
}

// printRecord shows the headers' names, or with payload all of the record.
func printRecord(out io.Writer, field func(name, value string), l *deadletter.Letter, payload bool) {
	names := make([]string, len(l.Headers))
	for i, h := range l.Headers {
		names[i] = printable(h.Name)
	}
	if !payload {
		field("headers", orNone(strings.Join(names, ", ")))
		return
	}
	fmt.Fprintln(out, "\nheaders")
	for i, h := range l.Headers {
		value := "null"
		if h.Value != nil {
			value = printable(string(h.Value))
		}
		fmt.Fprintf(out, "  %s: %s\n", names[i], value)
	}
	if len(l.Value) == 0 {
		return // the field says why
	}
	fmt.Fprintln(out, "\nvalue")
	for line := range strings.SplitSeq(string(l.Value), "\n") { // lines may stay lines: nothing follows
		fmt.Fprintln(out, printable(line))
	}
}

// maxField is more than any field holds that is shown whole.
const maxField = 1 << 20

func stateText(l *deadletter.Letter) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s since %s", l.State, showTime(l.Changed))
	if l.Replays > 0 {
		fmt.Fprintf(&b, ", %s", plural(int64(l.Replays), "replay"))
	}
	if l.ReplayTopic != "" {
		fmt.Fprintf(&b, ", the last to topic %s", printable(l.ReplayTopic))
	}
	return b.String()
}

// valueText says of the value what may always be said.
func valueText(l *deadletter.Letter) string {
	switch {
	case l.ValueBytes < 0:
		return "null"
	case !l.ValueKept:
		return sizeText(l.ValueBytes) + ", not kept; a replay reads it from the outbox table"
	}
	return sizeText(l.ValueBytes)
}

// sizeText is a number of bytes for people.
func sizeText(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return plural(n, "byte")
}
