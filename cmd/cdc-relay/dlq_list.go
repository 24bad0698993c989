package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

const (
	listPage  = 500 // dead letters that are read at once
	listLimit = 100 // and shown, unless --max says otherwise
)

func newDLQList(a *app, src *source) *cobra.Command {
	filter := letterFilter{source: src}
	var o output
	var show listing
	var stateNames []string
	cmd := &cobra.Command{
		Use:   "list [NUMBER…]",
		Short: "List dead letters, the oldest first",
		Long: `list shows dead letters, the oldest first: those that are dead, unless --state says
otherwise, and 100 of them, unless --max does. Headers' values and payloads are shown with
--show-payload only.

With -o json it prints an array of objects. Their fields: id (the number), slot, state,
reason, error, attempts, first_failed_at, last_failed_at, may_be_published, table,
message_id, type, topic, key, headers (name, value), value_bytes (null: a null value),
value_kept, value, record_time, committed_at, commit_lsn, change_lsn, replays, replay_topic,
created_at, changed_at. What is not UTF-8 is in a field …_base64 instead. More fields may
come; these stay.

With --source inbox the fields are id, consumer, state, reason, error, deliveries,
first_failed_at, last_failed_at, message_id, type, topic, partition, offset, key, version,
headers, value_bytes, value, record_time, blocks (later messages of the key wait), replays,
not_before (of the next try), created_at, changed_at.`,
		Example: `  cdc-relay dlq list
  cdc-relay dlq list --reason too_large --since 24h
  cdc-relay dlq list --state replayed,discarded --max 0 -o json
  cdc-relay dlq list --exit-code > /dev/null || echo "look at the dead letters"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			f, err := filter.read(cmd, args, time.Now())
			if err != nil {
				return err
			}
			if f.States, err = src.readStates(cmd, stateNames); err != nil {
				return err
			}
			if show.limit < 0 {
				return usagef(cmd.CommandPath()+" --max 0", "--max %d is negative", show.limit)
			}
			show.json = o.json()
			return a.withLetters(cmd, src, func(l *letters) error {
				f.Owner = l.owner
				return show.list(cmd, l, f)
			})
		},
	}
	a.databaseFlag(cmd)
	filter.flags(cmd)
	o.flag(cmd)
	cmd.Flags().StringSliceVar(&stateNames, "state", []string{string(deadletter.Dead)}, "only those in these `states`: dead, replayed, discarded, or all; of the inbox: dead, parked, due, processed, discarded, or all")
	cmd.Flags().Int64Var(&show.limit, "max", listLimit, "show at most this many; 0 shows all")
	cmd.Flags().BoolVar(&show.payload, "show-payload", false, "show headers' values and payloads, too")
	cmd.Flags().BoolVar(&show.exitCode, "exit-code", false, "exit 3 when there are any")
	return cmd
}

// listing is how list shows dead letters.
type listing struct {
	limit                   int64
	json, payload, exitCode bool
}

func (s *listing) list(cmd *cobra.Command, l *letters, f deadletter.Filter) error {
	ctx := cmd.Context()
	total, err := l.count(ctx, f)
	if err != nil {
		return err
	}
	if s.json {
		err = s.array(ctx, cmd.OutOrStdout(), l, f)
	} else {
		err = s.table(ctx, cmd, l, f, total)
	}
	if err != nil {
		return err
	}
	if s.exitCode && total > 0 {
		return &exitError{fmt.Errorf("there are %s", plural(total, "dead letter")), exitNo, "cdc-relay dlq show, replay or discard"}
	}
	return nil
}

func (s *listing) array(ctx context.Context, out io.Writer, l *letters, f deadletter.Filter) error {
	array := jsonArray{out: out}
	err := s.each(ctx, l, f, func(letter *entry) error { return array.add(toJSON(letter, s.payload)) })
	if err != nil {
		return err
	}
	return array.end()
}

func (s *listing) table(ctx context.Context, cmd *cobra.Command, l *letters, f deadletter.Filter, total int64) error {
	if total == 0 {
		text, err := l.none(ctx, "dead letter that matches")
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), text)
		}
		return err
	}
	t := newLetterTable(l.inbox, f.States, s.payload)
	shown := int64(0)
	err := s.each(ctx, l, f, func(letter *entry) error {
		shown++
		t.letter(letter)
		return nil
	})
	if err != nil {
		return err
	}
	t.print(cmd.OutOrStdout())
	if shown < total {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d; --max 0 shows all\n", shown, total)
	}
	return nil
}

// each reads the values only when they are to be shown, one at a time: they may be large.
func (s *listing) each(ctx context.Context, l *letters, f deadletter.Filter, do func(*entry) error) error {
	return l.each(ctx, f, s.limit, listPage, func(page []entry) error {
		for i := range page {
			letter := &page[i]
			if s.payload {
				whole, found, err := l.get(ctx, l.owner, letter.ID)
				if err != nil {
					return err
				}
				if found { // not purged since
					letter = whole
				}
			}
			if err := do(letter); err != nil {
				return err
			}
		}
		return nil
	})
}

// letterTable lists dead letters, one a line.
type letterTable struct {
	*table
	inbox, state, payload bool
}

func newLetterTable(inbox bool, states []deadletter.State, payload bool) *letterTable {
	t := &letterTable{inbox: inbox, state: len(states) != 1, payload: payload}
	head := []string{">NUMBER", "SINCE"}
	if inbox {
		head = append(head, "CONSUMER")
	}
	if t.state {
		head = append(head, "STATE")
	}
	head = append(head, "REASON", "TYPE", "TOPIC", "KEY", "ERROR")
	if payload {
		head = append(head, "VALUE")
	}
	t.table = newTable(head...)
	return t
}

func (t *letterTable) letter(l *entry) {
	cells := []string{strconv.FormatInt(l.ID, 10), showTime(l.Created)}
	if t.inbox {
		cells = append(cells, cell(l.inbox.Consumer, 24))
	}
	if t.state {
		cells = append(cells, string(l.State))
	}
	cells = append(cells, printable(string(l.Reason)), cell(l.Type, 24), cell(l.Topic, 48), cellBytes(l.Key, 36))
	failure := l.Error
	// What comes first repeats the topic.
	if _, problem, found := strings.Cut(failure, "cannot be published: "); found {
		failure = problem
	}
	if l.MayBePublished {
		failure = "may be published; " + failure
	}
	cells = append(cells, cell(failure, 80))
	if t.payload {
		cells = append(cells, shorten(payloadText(&l.Letter, 240), 60))
	}
	t.add(cells...)
}

// cell is text in a table, "–" when there is none.
func cell(text string, limit int) string {
	if text == "" {
		return "–"
	}
	// Only what can be shown is escaped; an escape takes up to ten characters.
	return shorten(printable(text), limit)
}

// cellBytes tells a null from an empty text.
func cellBytes(b []byte, limit int) string {
	if b != nil && len(b) == 0 {
		return `""`
	}
	return cell(string(b), limit)
}

// payloadText is the value for people, of which no more than limit bytes matter.
func payloadText(l *deadletter.Letter, limit int) string {
	switch {
	case l.ValueBytes < 0:
		return "null"
	case !l.ValueKept:
		return "not kept"
	case len(l.Value) == 0:
		return `""`
	}
	return printable(string(l.Value[:min(limit, len(l.Value))]))
}
