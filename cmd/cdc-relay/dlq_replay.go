package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// replayBatch is how many dead letters go in one transaction. The relay publishes none of them before
// the transaction has committed, so it is small.
const replayBatch = 20

func newDLQReplay(a *app, src *source) *cobra.Command {
	filter := letterFilter{source: src}
	var o output
	r := replay{stderr: a.stderr}
	cmd := &cobra.Command{
		Use:   "replay [NUMBER…]",
		Short: "Give dead letters back to the relay, to be published",
		Long: `replay gives dead letters back to the relay: by their numbers, by a filter, or --all. The
relay that streams from the slot publishes them when it comes to them, with the same
message id, key, headers and value, and the header cdc-relay-replay with the number of the
replay. They are "replayed" then; one that is refused again is dead again. What is not dead
is left alone, so the command can be repeated.

With --wait it waits until the relay has got there, says which were refused again, and exits
4 when any was, or when --timeout passes.

With --source inbox it marks them due. The consumer's own runner handles them within
seconds, with a fresh count of deliveries; the command says when none has been seen. --rate
and --to-topic have no meaning there. --wait waits for the runner.

With -o json it prints an object with the fields matched, replayed, dry_run, and with --wait
also published (with --source inbox: processed) and refused_again, an array of dead letters
as in list. without_runner lists consumers that no runner was seen of, with seen_at_age_s,
null for never.`,
		Example: `  cdc-relay dlq replay 17 18
  cdc-relay dlq replay --reason too_large --since 24h --dry-run
  cdc-relay dlq replay --reason invalid_topic --to-topic orders --wait
  cdc-relay dlq replay --all --max 1000 --rate 50`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if err := r.check(cmd, src); err != nil {
				return err
			}
			if err := filter.chosen(cmd, args); err != nil {
				return err
			}
			f, err := filter.read(cmd, args, time.Now())
			if err != nil {
				return err
			}
			f.States = []deadletter.State{deadletter.Dead}
			r.json = o.json()
			return a.withLetters(cmd, src, func(l *letters) error {
				f.Owner = l.owner
				return r.run(cmd, l, f)
			})
		},
	}
	a.databaseFlag(cmd)
	filter.flags(cmd)
	filter.allFlag(cmd)
	o.flag(cmd)
	r.flags(cmd)
	return cmd
}

// replay is how dead letters are replayed, and what has come of it.
type replay struct {
	topic   string
	dryRun  bool
	limit   int64
	rate    float64
	wait    bool
	timeout time.Duration
	json    bool
	stderr  io.Writer

	work     work
	active   bool          // a relay streams from the slot
	replayed []int64       // numbers
	end      pglogrepl.LSN // what the relay confirms once it is done with them
	refused  []entry
	waited   bool
	missing  []jsonRunner // consumers that no runner has been seen of
}

func (r *replay) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&r.topic, "to-topic", "", "publish to this `topic` instead of the one of the dead letter")
	flags.BoolVar(&r.dryRun, "dry-run", false, "only show what would be replayed")
	flags.Int64Var(&r.limit, "max", 0, "at most this many, the oldest first; 0 is no limit")
	flags.Float64Var(&r.rate, "rate", 200, "at most this many a second; 0 is no limit")
	flags.BoolVar(&r.wait, "wait", false, "wait until the relay has published them")
	flags.DurationVar(&r.timeout, "timeout", 0, "with --wait: exit 4 after this `time`")
}

// maxTopic is the longest name that Kafka allows.
const maxTopic = 249

func (r *replay) check(cmd *cobra.Command, src *source) error {
	switch path := cmd.CommandPath(); {
	case r.limit < 0:
		return usagef(path+" --max 100", "--max %d is negative", r.limit)
	case !(r.rate >= 0) || r.rate > 1e6:
		return usagef(path+" --rate 200", "--rate %v is not from 0 to 1000000", r.rate)
	case r.timeout < 0:
		return usagef(path+" --wait --timeout 1m", "--timeout %v is negative", r.timeout)
	case r.timeout != 0 && !r.wait:
		return usagef(path+" --wait --timeout "+r.timeout.String(), "--timeout needs --wait")
	case cmd.Flags().Changed("to-topic") && src.inbox():
		return usagef(path+" --source inbox", "--to-topic is for the dead letters of the relay; a consumer's go to no topic")
	case cmd.Flags().Changed("to-topic") && !topicName(r.topic):
		return usagef(path+" --to-topic orders", "--to-topic %q cannot be a topic's name", r.topic)
	}
	return nil
}

// topicName reports whether a topic may have the name.
func topicName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return name != "" && name != "." && name != ".." && len(name) <= maxTopic
}

func (r *replay) run(cmd *cobra.Command, l *letters, f deadletter.Filter) error {
	ctx := cmd.Context()
	r.work = work{
		letters: l, filter: f, limit: r.limit, batch: replayBatch, rate: r.rate,
		stderr: r.stderr, verb: "replayed", change: r.give,
	}
	if l.inbox {
		r.work.verb, r.work.change = "made due", r.makeDue
	} else if err := r.lookAtSlot(ctx, l); err != nil {
		return err
	}
	if err := r.work.begin(cmd); err != nil {
		return err
	}
	if r.dryRun || r.work.total == 0 {
		return r.preview(cmd, l, f)
	}
	err := r.work.run(ctx)
	await, tell := r.await, r.print
	if l.inbox {
		await, tell = r.awaitRunner, r.printDue
		if err == nil {
			err = r.lookAtRunners(ctx, l)
		}
	}
	if err == nil && r.wait && len(r.replayed) > 0 {
		err = await(ctx, l)
	}
	if r.json {
		return errors.Join(r.printJSON(cmd.OutOrStdout()), err)
	}
	tell(cmd.OutOrStdout())
	return err
}

// lookAtSlot finds out whether anybody is there to publish.
func (r *replay) lookAtSlot(ctx context.Context, l *letters) error {
	slot, found, err := l.db.Slot(ctx, l.owner)
	if err == nil && !found {
		return &exitError{
			fmt.Errorf("slot %s does not exist, so nobody would publish them", l.owner), exitConfig,
			"name the relay's slot in postgres.slot, or create it: cdc-relay init",
		}
	}
	r.active = slot.Active
	return err
}

// give replays one batch.
func (r *replay) give(ctx context.Context, ids []int64) (n int64, err error) {
	results, err := deadletter.Replay(ctx, r.work.letters.db, ids, r.topic)
	for _, one := range results {
		if one.Replayed {
			r.replayed = append(r.replayed, one.ID)
			r.end = max(r.end, one.LSN)
			n++
		}
	}
	return n, err
}

// preview shows what there is to do.
func (r *replay) preview(cmd *cobra.Command, l *letters, f deadletter.Filter) error {
	if r.json {
		return r.printJSON(cmd.OutOrStdout())
	}
	return preview(cmd, l, f, r.work.total, "would replay")
}

// jsonReplay is the outcome as JSON.
type jsonReplay struct {
	Matched      int64        `json:"matched"`
	Replayed     int64        `json:"replayed"`
	DryRun       bool         `json:"dry_run"`
	Published    *int         `json:"published,omitempty"`
	Processed    *int         `json:"processed,omitempty"`
	RefusedAgain []any        `json:"refused_again,omitempty"`
	Waiting      []jsonRunner `json:"without_runner,omitempty"`
}

func (r *replay) printJSON(out io.Writer) error {
	result := jsonReplay{Matched: r.work.total, Replayed: r.work.done, DryRun: r.dryRun, Waiting: r.missing}
	if r.waited {
		fine := len(r.replayed) - len(r.refused)
		if r.work.letters.inbox {
			result.Processed = &fine
		} else {
			result.Published = &fine
		}
		for i := range r.refused {
			result.RefusedAgain = append(result.RefusedAgain, toJSON(&r.refused[i], false))
		}
	}
	return printJSON(out, result)
}

func (r *replay) print(out io.Writer) {
	if r.work.done > 0 {
		fmt.Fprintf(out, "replayed %s\n", plural(r.work.done, "dead letter"))
	}
	switch {
	case !r.wait && r.work.done > 0 && r.active:
		fmt.Fprintln(out, "the relay publishes them when it comes to them; --wait would wait for that")
	case !r.wait && r.work.done > 0:
		fmt.Fprintf(out, "no relay streams from slot %s now; the next one publishes them\n", r.work.letters.owner)
	case r.waited:
		fmt.Fprintf(out, "published %d, refused again %d\n", len(r.replayed)-len(r.refused), len(r.refused))
	}
	if len(r.refused) > 0 {
		fmt.Fprintln(out)
		printSome(out, r.refused, int64(len(r.refused)))
	}
}

// someLetters is how many are listed where the whole would be too much.
const someLetters = 20

// preview shows what a command would change: how many, and the first of them.
func preview(cmd *cobra.Command, l *letters, f deadletter.Filter, total int64, would string) error {
	out := cmd.OutOrStdout()
	if total == 0 {
		return l.nothing(cmd)
	}
	fmt.Fprintf(out, "%s %s:\n\n", would, plural(total, "dead letter"))
	some, err := l.list(cmd.Context(), f, int(min(total, someLetters)), 0)
	if err != nil {
		return err
	}
	printSome(out, some, total)
	return nil
}

// printSome lists the first of many dead letters.
func printSome(out io.Writer, some []entry, total int64) {
	t := newLetterTable(len(some) > 0 && some[0].inbox != nil, []deadletter.State{deadletter.Dead}, false)
	for i := range some[:min(len(some), someLetters)] {
		t.letter(&some[i])
	}
	t.print(out)
	if more := total - int64(len(t.rows)); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
}

// nothing says that no dead letter was chosen that is dead.
func (l *letters) nothing(cmd *cobra.Command) error {
	text, err := l.none(cmd.Context(), "dead letter that matches and is still dead")
	if err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), text)
	}
	return err
}

// sayLeftAlone says of dead letters that were named by their number why nothing will be done to them.
func (l *letters) sayLeftAlone(cmd *cobra.Command, ids []int64) error {
	missing := map[int64]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	f := deadletter.Filter{Owner: l.owner, Letters: ids}
	err := l.each(cmd.Context(), f, 0, listPage, func(page []entry) error {
		for i := range page {
			delete(missing, page[i].ID)
			if page[i].State != deadletter.Dead {
				fmt.Fprintf(cmd.ErrOrStderr(), "left alone: %d is %s\n", page[i].ID, stateText(&page[i].Letter))
			}
		}
		return nil
	})
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		fmt.Fprintf(cmd.ErrOrStderr(), "left alone: %s has no dead letter %d\n", l.whose(), id)
	}
	return err
}
