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
	var src source
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters, send them again, give them up",
		Long: `dlq works with the dead letters of the slot postgres.slot: rows that could not be
published and are kept in public.cdc_relay_dead_letter. It talks to Postgres only.

With --source inbox it works with those of consumers: messages that could not be handled and
are kept in public.cdc_relay_inbox_letter, in the consumer's database. replay marks them due
there, and the consumer's own runner handles them; then they are "processed". What waits
behind a dead letter is "parked"; see "cdc-relay parked".

A dead letter is "dead" until somebody decides. replay gives it back to the relay, which
publishes it with the same message id; it is "replayed" then, and dead again if it is
refused again. discard gives it up. Only purge deletes, and never one that is dead.

Times are given as 2006-01-02T15:04:05Z, as 2006-01-02 (UTC), or as how long ago: 90m, 24h,
7d. Control characters in what is shown are escaped.`,
		Example: `  cdc-relay dlq stats
  cdc-relay dlq list --reason too_large --since 24h
  cdc-relay dlq show 17 --show-payload
  cdc-relay dlq replay 17 --wait
  cdc-relay dlq discard --topic outbox.event.test
  cdc-relay dlq --source inbox list --consumer billing`,
	}
	group(cmd)
	src.flags(cmd)
	cmd.AddCommand(newDLQStats(a, &src), newDLQList(a, &src), newDLQShow(a, &src), newDLQReplay(a, &src), newDLQDiscard(a, &src), newDLQPurge(a, &src))
	return cmd
}

// letters is what the commands of dlq work with.
type letters struct {
	store

	db    *catalog.DB
	owner string // the slot, or the consumer, "" for all of them
	inbox bool
}

// withLetters calls do with a connection to the database of the dead letters.
func (a *app) withLetters(cmd *cobra.Command, src *source, do func(*letters) error) error {
	if err := src.check(cmd); err != nil {
		return err
	}
	return a.withDatabase(cmd.Context(), func(c *config.Config, db *catalog.DB) error {
		if src.inbox() {
			return do(&letters{store: inboxStore{db}, db: db, owner: src.consumer, inbox: true})
		}
		return do(&letters{store: relayStore{db}, db: db, owner: c.Postgres.Slot})
	})
}

// withDatabase calls do with a connection to postgres.url.
func (a *app) withDatabase(ctx context.Context, do func(*config.Config, *catalog.DB) error) error {
	c, err := a.load(config.Database)
	if err != nil {
		return err
	}
	db, err := catalog.Open(ctx, c.Catalog())
	if err == nil {
		defer db.Close(context.WithoutCancel(ctx))
		err = do(c, db)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return &exitError{errors.New("interrupted"), exitInterrupted, ""}
	}
	return err
}

// whose names whom the letters belong to.
func (l *letters) whose() string {
	switch {
	case l.inbox && l.owner == "":
		return "the inbox"
	case l.inbox:
		return "consumer " + printable(l.owner)
	}
	return "slot " + l.owner
}

// each calls do with pages of the dead letters that the filter chooses, in the order of their ids, until
// limit of them (0: all) have been seen.
func (l *letters) each(ctx context.Context, f deadletter.Filter, limit int64, page int, do func([]entry) error) error {
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

// none says that there are no such dead letters, and which other slot or consumer has some: one that was
// not named is an easy mistake.
func (l *letters) none(ctx context.Context, such string) (string, error) {
	text := fmt.Sprintf("%s has no %s", l.whose(), such)
	if l.owner == "" {
		return text, nil
	}
	stats, err := l.stats(ctx, "", deadletter.Dead)
	if err != nil {
		return "", err
	}
	kind, setting := "slot", "postgres.slot"
	if l.inbox {
		kind, setting = "consumer", "--consumer"
	}
	counts := map[string]int64{}
	var others []string
	for _, s := range stats {
		if s.Owner == l.owner {
			continue
		}
		if counts[s.Owner] == 0 {
			others = append(others, s.Owner)
		}
		counts[s.Owner] += s.Count
	}
	for i, other := range others {
		others[i] = fmt.Sprintf("%s %s has %s (%s)", kind, printable(other), plural(counts[other], "dead letter"), setting)
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
