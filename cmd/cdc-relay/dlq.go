package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

func newDLQ(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters, send them again, give them up",
		Long: `dlq works with the dead letters of the slot postgres.slot: rows that could not be
published and are kept in public.cdc_relay_dead_letter. It talks to Postgres only.

A dead letter is "dead" until somebody decides. replay gives it back to the relay, which
publishes it with the same message id; it is "replayed" then, and dead again if it is
refused again. discard gives it up. Only purge deletes, and never one that is dead.

Times are given as 2006-01-02T15:04:05Z, as 2006-01-02 (UTC), or as how long ago: 90m, 24h,
7d. Control characters in what is shown are escaped.`,
		Example: `  cdc-relay dlq stats
  cdc-relay dlq list --reason too_large --since 24h
  cdc-relay dlq show 17 --show-payload
  cdc-relay dlq replay 17 --wait
  cdc-relay dlq discard --topic outbox.event.test`,
	}
	group(cmd)
	cmd.AddCommand(newDLQStats(a), newDLQList(a), newDLQShow(a), newDLQReplay(a), newDLQDiscard(a), newDLQPurge(a))
	return cmd
}

// letters is what the commands of dlq work with.
type letters struct {
	db   *catalog.DB
	slot string
	list func(ctx context.Context, f deadletter.Filter, limit int, after int64) ([]deadletter.Letter, error)
}

// withLetters calls do with a connection to the database of the dead letters.
func (a *app) withLetters(ctx context.Context, do func(*letters) error) error {
	c, err := a.load(config.Database)
	if err != nil {
		return err
	}
	db, err := catalog.Open(ctx, c.Catalog())
	if err == nil {
		defer db.Close(context.WithoutCancel(ctx))
		l := &letters{db: db, slot: c.Postgres.Slot}
		l.list = func(ctx context.Context, f deadletter.Filter, limit int, after int64) ([]deadletter.Letter, error) {
			return deadletter.List(ctx, db, f, limit, after)
		}
		err = do(l)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return &exitError{errors.New("interrupted"), exitInterrupted, ""}
	}
	return err
}

// each calls do with pages of the dead letters that the filter chooses, in the order of their ids, until
// limit of them (0: all) have been seen.
func (l *letters) each(ctx context.Context, f deadletter.Filter, limit int64, page int, do func([]deadletter.Letter) error) error {
	var after, seen int64
	for limit == 0 || seen < limit {
		if limit != 0 {
			page = int(min(int64(page), limit-seen))
		}
		found, err := l.list(ctx, f, page, after)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return nil
		}
		after = found[len(found)-1].ID
		seen += int64(len(found))
		if err := do(found); err != nil {
			return err
		}
	}
	return nil
}

// none says that the slot has no such dead letters, and which slot has some: one that was not named
// is an easy mistake.
func (l *letters) none(ctx context.Context, such string) (string, error) {
	stats, err := deadletter.Stats(ctx, l.db, "", deadletter.Dead)
	if err != nil {
		return "", err
	}
	counts := map[string]int64{}
	var others []string
	for _, s := range stats {
		if s.Slot == l.slot {
			continue
		}
		if counts[s.Slot] == 0 {
			others = append(others, s.Slot)
		}
		counts[s.Slot] += s.Count
	}
	text := fmt.Sprintf("slot %s has no %s", l.slot, such)
	for i, slot := range others {
		others[i] = fmt.Sprintf("slot %s has %s (postgres.slot)", printable(slot), plural(counts[slot], "dead letter"))
	}
	if len(others) > 0 {
		text += "; " + strings.Join(others, ", ")
	}
	return text, nil
}

// output is the flag -o of a command.
type output struct{ form string }

func (o *output) flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.form, "output", "o", "table", "`form` of the output: table or json")
}

// json reports whether JSON is asked for.
func (o *output) json() bool { return o.form == "json" }

func (o *output) check(cmd *cobra.Command) error {
	if o.form != "table" && o.form != "json" {
		return usagef(cmd.CommandPath()+" -o json", "unknown output format %q", o.form)
	}
	return nil
}
