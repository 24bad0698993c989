package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// discardBatch is how many dead letters one statement discards or purges.
const discardBatch = 200

func newDLQDiscard(a *app, src *source) *cobra.Command {
	filter := letterFilter{source: src}
	var dryRun bool
	var limit int64
	var o output
	cmd := &cobra.Command{
		Use:   "discard [NUMBER…]",
		Short: "Give dead letters up",
		Long: `discard gives dead letters up: by their numbers, by a filter, or --all. They count no
more and are not published. They are kept until purge, or dead_letter.retention, deletes
them, but there is no way back to dead. What is not dead is left alone.

With -o json it prints an object with the fields matched, discarded, dry_run.`,
		Example: `  cdc-relay dlq discard 17
  cdc-relay dlq discard --topic outbox.event.test --dry-run
  cdc-relay dlq discard --reason invalid_row --until 7d`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if limit < 0 {
				return usagef(cmd.CommandPath()+" --max 100", "--max %d is negative", limit)
			}
			if err := filter.chosen(cmd, args); err != nil {
				return err
			}
			f, err := filter.read(cmd, args, time.Now())
			if err != nil {
				return err
			}
			f.States = []deadletter.State{deadletter.Dead}
			return a.withLetters(cmd, src, func(l *letters) error {
				f.Owner = l.owner
				w := &work{letters: l, filter: f, limit: limit, batch: discardBatch, stderr: a.stderr, verb: "discarded", change: l.discard}
				return discard(cmd, w, dryRun, o.json())
			})
		},
	}
	a.databaseFlag(cmd)
	filter.flags(cmd)
	filter.allFlag(cmd)
	o.flag(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be discarded")
	cmd.Flags().Int64Var(&limit, "max", 0, "at most this many, the oldest first; 0 is no limit")
	return cmd
}

// jsonDiscard is the outcome of discard as JSON.
type jsonDiscard struct {
	Matched   int64 `json:"matched"`
	Discarded int64 `json:"discarded"`
	DryRun    bool  `json:"dry_run"`
}

func discard(cmd *cobra.Command, w *work, dryRun, asJSON bool) error {
	if err := w.begin(cmd); err != nil {
		return err
	}
	if (dryRun || w.total == 0) && !asJSON {
		return preview(cmd, w.letters, w.filter, w.total, "would discard")
	}
	var err error
	if !dryRun {
		err = w.run(cmd.Context())
	}
	if asJSON {
		if e := printJSON(cmd.OutOrStdout(), jsonDiscard{w.total, w.done, dryRun}); e != nil {
			return e
		}
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "discarded %s\n", plural(w.done, "dead letter"))
	return err
}

func newDLQPurge(a *app, src *source) *cobra.Command {
	var before string
	var all bool
	var limit int64
	var o output
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Delete dead letters that were replayed or discarded",
		Long: `purge deletes dead letters that were replayed or discarded before --until, or --all of
them. It never deletes one that is dead, and none that the relay may meet again after a
restart: those above the slot's restart_lsn. dead_letter.retention has the relay do the same
by itself. With --source inbox it deletes those that were processed or discarded.

With -o json it prints an object with the field purged.`,
		Example: `  cdc-relay dlq purge --until 30d
  cdc-relay dlq purge --all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			until := cmd.Flags().Changed("until")
			switch {
			case !until && !all:
				return usagef("cdc-relay dlq purge --until 30d", "nothing says which; give --until, or --all")
			case until && all:
				return usagef("cdc-relay dlq purge --all", "--all and --until exclude each other")
			case until && before == "":
				return usagef("cdc-relay dlq purge --until 30d", "--until is empty")
			case limit < 0:
				return usagef("cdc-relay dlq purge --all --max 100", "--max %d is negative", limit)
			}
			now := time.Now()
			end, err := readTime(cmd, "until", before, now)
			if err != nil {
				return err
			}
			if all {
				end = now.AddDate(1, 0, 0) // also what a clock that goes ahead has written
			}
			return a.withLetters(cmd, src, func(l *letters) error {
				return l.purgeAll(cmd, end, limit, all, o.json())
			})
		},
	}
	a.databaseFlag(cmd)
	o.flag(cmd)
	cmd.Flags().StringVar(&before, "until", "", "those that were replayed or discarded before this `time`")
	cmd.Flags().BoolVar(&all, "all", false, "however short ago that was")
	cmd.Flags().Int64Var(&limit, "max", 0, "at most this many; 0 is no limit")
	return cmd
}

func (l *letters) purgeAll(cmd *cobra.Command, before time.Time, limit int64, all, asJSON bool) error {
	var done int64
	var failure error
	for batch := int64(discardBatch); limit == 0 || done < limit; {
		if limit != 0 {
			batch = min(batch, limit-done)
		}
		n, err := l.purge(context.WithoutCancel(cmd.Context()), l.owner, before, int(batch))
		done += n
		if failure = err; err != nil || n < batch {
			break
		}
		if cmd.Context().Err() != nil {
			failure = &exitError{fmt.Errorf("stopped; purged %s", plural(done, "dead letter")), exitInterrupted, "run it again to go on"}
			break
		}
	}
	out := cmd.OutOrStdout()
	if asJSON {
		if err := printJSON(out, map[string]int64{"purged": done}); err != nil {
			return err
		}
		return failure
	}
	if done > 0 || failure == nil {
		fmt.Fprintf(out, "purged %s\n", plural(done, "dead letter"))
	}
	if failure != nil || limit != 0 && done == limit {
		return failure
	}
	if l.inbox {
		return nil // all that is left is later than that
	}
	f := deadletter.Filter{Owner: l.owner, States: []deadletter.State{deadletter.Replayed, deadletter.Discarded}}
	kept, err := l.count(cmd.Context(), f)
	if err == nil && kept > 0 {
		why := "which the relay may meet again after a restart"
		if !all {
			why = "later than that, or " + why
		}
		fmt.Fprintf(out, "kept %d that were replayed or discarded, %s\n", kept, why)
	}
	return err
}
