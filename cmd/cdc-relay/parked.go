package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/inboxdb"
)

func newParked(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parked",
		Short: "Look at keys that wait behind a dead letter or a gap",
		Long: `parked works with the keys of which messages wait, in the database of the consumer: behind a
dead letter of the same key, or because an earlier version is missing. What waits is handled
by the consumer's own runner, in order, once nothing is in the way: when the dead letter has
been replayed (retry) or given up, or the gap passed over (release).`,
		Example: `  cdc-relay parked list --consumer billing
  cdc-relay parked retry --consumer billing --topic outbox.event.order --key o-4711
  cdc-relay parked release --consumer billing --topic outbox.event.order --key o-4711`,
	}
	group(cmd)
	cmd.AddCommand(newParkedList(a), newParkedRetry(a), newParkedRelease(a))
	return cmd
}

// laneFilter holds the flags that choose keys.
type laneFilter struct {
	consumer   consumerFlag
	topic, key string
	all        bool
}

func (f *laneFilter) flags(cmd *cobra.Command) {
	f.consumer.flag(cmd, "only keys of this `consumer`")
	cmd.Flags().StringVar(&f.topic, "topic", "", "only keys of this `topic`")
	cmd.Flags().StringVar(&f.key, "key", "", "only this `key`")
}

// read checks the flags. What changes keys never takes all of them for want of a filter.
func (f *laneFilter) read(cmd *cobra.Command, changes bool) (inboxdb.LaneFilter, error) {
	out := inboxdb.LaneFilter{Consumer: f.consumer.name, Topic: f.topic}
	if err := f.consumer.check(cmd, changes); err != nil {
		return out, err
	}
	if cmd.Flags().Changed("topic") && f.topic == "" {
		return out, usagef(cmd.CommandPath()+" --help", "--topic is empty")
	}
	keyed := cmd.Flags().Changed("key")
	if keyed {
		out.Key = []byte(f.key) // an empty key is one
	}
	switch given := keyed || f.topic != ""; {
	case changes && !given && !f.all:
		return out, usagef(cmd.CommandPath()+" --consumer NAME --key KEY", "nothing says which keys; give --key or --topic, or --all")
	case changes && given && f.all:
		return out, usagef(cmd.CommandPath()+" --help", "--all and a filter exclude each other")
	}
	return out, nil
}

// jsonLane is a key as JSON.
type jsonLane struct {
	Consumer       string     `json:"consumer"`
	Topic          string     `json:"topic"`
	Key            *string    `json:"key"`
	KeyBase64      string     `json:"key_base64,omitempty"`
	Parked         int64      `json:"parked"`
	Oldest         *time.Time `json:"oldest"`
	Letter         *int64     `json:"letter"`
	LetterState    string     `json:"letter_state,omitempty"`
	MissingVersion *int64     `json:"missing_version"`
}

func newParkedList(a *app) *cobra.Command {
	var filter laneFilter
	var o output
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys that wait, those that wait longest first",
		Long: `list shows the keys of which messages wait: how many, since when, and behind what, which is
the number of a dead letter or the version that is missing.

With -o json it prints an array of objects with the fields consumer, topic, key (or
key_base64), parked, oldest, letter (number of the dead letter in the way), letter_state,
missing_version.`,
		Example: `  cdc-relay parked list
  cdc-relay parked list --consumer billing -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if limit < 0 {
				return usagef(cmd.CommandPath()+" --max 0", "--max %d is negative", limit)
			}
			f, err := filter.read(cmd, false)
			if err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), func(_ *config.Config, db *catalog.DB) error {
				most := limit
				if most == 0 {
					most = math.MaxInt32
				}
				lanes, err := inboxdb.Lanes(cmd.Context(), db, f, most)
				if err != nil {
					return err
				}
				if err := printLanes(cmd, lanes, o.json()); err != nil {
					return err
				}
				if len(lanes) == limit && limit > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "the first %d; --max 0 shows all\n", limit)
				}
				return nil
			})
		},
	}
	a.databaseFlag(cmd)
	filter.flags(cmd)
	o.flag(cmd)
	cmd.Flags().IntVar(&limit, "max", listLimit, "show at most this many; 0 shows all")
	return cmd
}

func printLanes(cmd *cobra.Command, lanes []inboxdb.Lane, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		array := jsonArray{out: out}
		for _, l := range lanes {
			one := jsonLane{
				Consumer: l.Consumer, Topic: l.Topic, Parked: l.Parked, Oldest: jsonTime(l.Oldest),
				LetterState: l.LetterState, MissingVersion: l.Missing,
			}
			one.Key, one.KeyBase64 = jsonText(l.Key)
			if l.Letter != 0 {
				one.Letter = &l.Letter
			}
			if err := array.add(one); err != nil {
				return err
			}
		}
		return array.end()
	}
	if len(lanes) == 0 {
		fmt.Fprintln(out, "nothing is parked")
		return nil
	}
	t := newTable("CONSUMER", "TOPIC", "KEY", ">PARKED", "OLDEST", ">AGE", "BEHIND")
	for _, l := range lanes {
		t.add(cell(l.Consumer, 24), cell(l.Topic, 48), cellBytes(l.Key, 36), number(l.Parked), showTime(l.Oldest),
			ageText(time.Since(l.Oldest)), behindText(l))
	}
	t.print(out)
	return nil
}

// behindText says what a key waits for.
func behindText(l inboxdb.Lane) string {
	switch {
	case l.Letter != 0:
		return fmt.Sprintf("dead letter %d (%s)", l.Letter, l.LetterState)
	case l.Missing != nil && *l.Missing < *l.Lowest:
		return fmt.Sprintf("missing version %d; the next is %d", *l.Missing, *l.Lowest)
	}
	return "nothing; the runner handles it"
}

func newParkedRetry(a *app) *cobra.Command {
	return newParkedChange(a, &cobra.Command{
		Use:   "retry",
		Short: "Replay the dead letters that keys wait behind",
		Long: `retry marks the dead letters that the keys wait behind as due. The consumer's own runner
handles them, and then what waits, in order. A key that waits for a missing version is left
alone: the version may still come.

With -o json it prints an object with the fields keys, replayed, left_alone.`,
		Example: `  cdc-relay parked retry --consumer billing --key o-4711
  cdc-relay parked retry --consumer billing --all`,
	}, parkedChange{verb: "replayed", change: retryLane})
}

func newParkedRelease(a *app) *cobra.Command {
	return newParkedChange(a, &cobra.Command{
		Use:   "release",
		Short: "Let keys go on without what they wait for",
		Long: `release lets keys go on: it discards the dead letters that they wait behind, and passes over
missing versions. The consumer's own runner then handles what waits, in order. There is no
way back; a missing version that comes later is stale.

With -o json it prints an object with the fields keys, released, left_alone.`,
		Example: `  cdc-relay parked release --consumer billing --key o-4711`,
	}, parkedChange{verb: "released", change: releaseLane})
}

// parkedChange is what is done to each key; change reports whether it did something.
type parkedChange struct {
	verb   string
	change func(ctx context.Context, db *catalog.DB, l inboxdb.Lane) (bool, error)
}

func newParkedChange(a *app, cmd *cobra.Command, c parkedChange) *cobra.Command {
	var filter laneFilter
	var o output
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(cmd); err != nil {
			return err
		}
		f, err := filter.read(cmd, true)
		if err != nil {
			return err
		}
		return a.withDatabase(cmd.Context(), func(_ *config.Config, db *catalog.DB) error {
			return c.run(cmd, db, f, o.json())
		})
	}
	a.databaseFlag(cmd)
	filter.flags(cmd)
	o.flag(cmd)
	cmd.Flags().BoolVar(&filter.all, "all", false, "all keys of the consumer; needed when nothing else chooses")
	return cmd
}

func (c parkedChange) run(cmd *cobra.Command, db *catalog.DB, f inboxdb.LaneFilter, asJSON bool) error {
	lanes, err := inboxdb.Lanes(cmd.Context(), db, f, math.MaxInt32)
	if err != nil {
		return err
	}
	done := 0
	for _, l := range lanes {
		if err = cmd.Context().Err(); err != nil {
			err = &exitError{fmt.Errorf("stopped; %s %d of %s", c.verb, done, plural(int64(len(lanes)), "key")), exitInterrupted, "run it again to go on"}
			break
		}
		var did bool
		if did, err = c.change(context.WithoutCancel(cmd.Context()), db, l); err != nil {
			break
		}
		if did {
			done++
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "left alone: key %s of topic %s waits behind %s\n", cellBytes(l.Key, 36), cell(l.Topic, 48), behindText(l))
		}
	}
	out := cmd.OutOrStdout()
	switch {
	case asJSON:
		if e := printJSON(out, map[string]int{"keys": len(lanes), c.verb: done, "left_alone": len(lanes) - done}); e != nil {
			return e
		}
	case len(lanes) == 0 && err == nil:
		fmt.Fprintln(out, "nothing is parked that matches")
	case err == nil:
		fmt.Fprintf(out, "%s %s; the consumer's runner handles what waits\n", c.verb, plural(int64(done), "key"))
	}
	return err
}

// retryLane replays what a key waits behind.
func retryLane(ctx context.Context, db *catalog.DB, l inboxdb.Lane) (bool, error) {
	if l.Letter == 0 {
		return false, nil
	}
	done, err := inboxdb.Replay(ctx, db, []int64{l.Letter})
	return len(done) > 0, err
}

// releaseLane gives up what a key waits behind: a dead letter, and then the gap.
func releaseLane(ctx context.Context, db *catalog.DB, l inboxdb.Lane) (bool, error) {
	if l.Letter == 0 {
		return inboxdb.Pass(ctx, db, l)
	}
	n, err := inboxdb.Discard(ctx, db, []int64{l.Letter})
	return n > 0, err
}
