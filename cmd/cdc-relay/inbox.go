package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/inboxdb"
)

func newInbox(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "Look at what consumers have settled",
		Long: `inbox works with what consumers have settled, in the database that postgres.url or
--database-url names: that of the consumer. Its dead letters are shown by
"cdc-relay dlq --source inbox", what waits behind them by "cdc-relay parked".`,
		Example: `  cdc-relay inbox stats --database-url postgres://…/billing
  cdc-relay inbox show 0199c5d5-7a0e-7000-8000-000000000001
  cdc-relay inbox forget 0199c5d5-7a0e-7000-8000-000000000001 --consumer billing
  cdc-relay inbox prune --consumer billing --until 30d`,
	}
	group(cmd)
	cmd.AddCommand(newInboxStats(a), newInboxShow(a), newInboxForget(a), newInboxPrune(a))
	return cmd
}

// consumerFlag is the flag --consumer of a command.
type consumerFlag struct{ name string }

func (c *consumerFlag) flag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&c.name, "consumer", "", usage)
}

// check refuses an empty name: an empty variable in a script must not mean "all".
func (c *consumerFlag) check(cmd *cobra.Command, needed bool) error {
	switch changed := cmd.Flags().Changed("consumer"); {
	case changed && c.name == "":
		return usagef(cmd.CommandPath()+" --help", "--consumer is empty")
	case needed && !changed:
		return usagef(cmd.CommandPath()+" --consumer NAME", "no consumer is given; cdc-relay inbox stats shows them")
	}
	return nil
}

// jsonConsumer is a consumer as JSON.
type jsonConsumer struct {
	Consumer        string     `json:"consumer"`
	Processed       int64      `json:"processed"`
	Stale           int64      `json:"stale"`
	Parked          int64      `json:"parked"`
	Dead            int64      `json:"dead"`
	Due             int64      `json:"due"`
	Discarded       int64      `json:"discarded"`
	Failing         int64      `json:"failing"`
	OldestSettled   *time.Time `json:"oldest_settled"`
	OldestFailing   *time.Time `json:"oldest_failing"`
	RunnerSeen      *time.Time `json:"runner_seen"`
	Retention       int64      `json:"retention_s"`
	MaxDeliveries   int        `json:"max_deliveries"`
	Order           string     `json:"order"`
	BreakerOpen     bool       `json:"breaker_open"`
	SaysOfItself    bool       `json:"known"`
	RunnerMissing   bool       `json:"runner_missing"`
	RunnerSeenAgeMS int64      `json:"runner_seen_age_ms"`
}

func newInboxStats(a *app) *cobra.Command {
	var o output
	var consumer consumerFlag
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count what each consumer has settled",
		Long: `stats counts, for each consumer, the messages that it has settled, by what became of them,
and those that have failed and are not settled yet. It tells when a runner of the consumer
was seen last. It reads every settled message, which may take a while.

With -o json it prints an array of objects with the fields consumer, processed, stale,
parked, dead, due, discarded, failing, oldest_settled, oldest_failing, runner_seen,
runner_seen_age_ms, runner_missing, retention_s (0: nothing is pruned), max_deliveries,
order, breaker_open, known (the consumer has said something of itself).`,
		Example: `  cdc-relay inbox stats
  cdc-relay inbox stats --consumer billing -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if err := consumer.check(cmd, false); err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), func(_ *config.Config, db *catalog.DB) error {
				found, err := inboxdb.Consumers(cmd.Context(), db, consumer.name)
				if err != nil {
					return err
				}
				return printConsumers(cmd, found, o.json())
			})
		},
	}
	a.databaseFlag(cmd)
	o.flag(cmd)
	consumer.flag(cmd, "only this `consumer`")
	return cmd
}

func printConsumers(cmd *cobra.Command, found []inboxdb.Consumer, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		array := jsonArray{out: out}
		for _, c := range found {
			if err := array.add(jsonConsumer{
				c.Name, c.Processed, c.Stale, c.Parked, c.Dead, c.Due, c.Discarded, c.Failing,
				jsonTime(c.OldestSettled), jsonTime(c.OldestFailing), jsonTime(c.RunnerSeen), int64(c.Retention / time.Second),
				c.MaxDeliveries, c.Order, c.BreakerOpen, c.Known, runnerMissing(c), c.RunnerAge.Milliseconds(),
			}); err != nil {
				return err
			}
		}
		return array.end()
	}
	if len(found) == 0 {
		fmt.Fprintln(out, "no consumer has settled anything here")
		return nil
	}
	t := newTable("CONSUMER", ">PROCESSED", ">STALE", ">PARKED", ">DEAD", ">DUE", ">DISCARDED", ">FAILING", "OLDEST", "RUNNER", "STATE")
	for _, c := range found {
		runner, state := "never seen", "–"
		if !c.RunnerSeen.IsZero() {
			runner = "seen " + ageText(c.RunnerAge) + " ago"
		}
		if c.BreakerOpen {
			state = "everything fails; one at a time is tried"
		}
		t.add(cell(c.Name, 24), number(c.Processed), number(c.Stale), number(c.Parked), number(c.Dead), number(c.Due),
			number(c.Discarded), number(c.Failing), showTime(c.OldestSettled), runner, state)
	}
	t.print(out)
	return nil
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func runnerMissing(c inboxdb.Consumer) bool { return c.RunnerSeen.IsZero() || c.RunnerAge > runnerAway }

// jsonMessage is what a consumer knows of a message, as JSON.
type jsonMessage struct {
	Consumer    string     `json:"consumer"`
	MessageID   string     `json:"message_id"`
	Outcome     *string    `json:"outcome"`
	SettledAt   *time.Time `json:"settled_at"`
	Letter      *int64     `json:"letter"`
	LetterState string     `json:"letter_state,omitempty"`
	Attempts    int        `json:"attempts"`
	Error       string     `json:"error"`
	LastFailed  *time.Time `json:"last_failed_at"`
}

func newInboxShow(a *app) *cobra.Command {
	var o output
	var consumer consumerFlag
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show what consumers have done with a message",
		Long: `show tells what consumers have done with a message, by its id: the record's header id. It
exits 3 when none knows it: it has not come yet, or has been pruned.

With -o json it prints an array of objects with the fields consumer, message_id, outcome
(null while it is not settled), settled_at, letter (the number for dlq), letter_state,
attempts (that have failed while it is not settled), error, last_failed_at.`,
		Example: `  cdc-relay inbox show 0199c5d5-7a0e-7000-8000-000000000001`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if err := consumer.check(cmd, false); err != nil {
				return err
			}
			id, err := oneID(cmd, args)
			if err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), func(_ *config.Config, db *catalog.DB) error {
				found, err := inboxdb.Find(cmd.Context(), db, consumer.name, id)
				if err != nil {
					return err
				}
				return printMessages(cmd, id, found, o.json())
			})
		},
	}
	a.databaseFlag(cmd)
	o.flag(cmd)
	consumer.flag(cmd, "only this `consumer`")
	return cmd
}

// oneID reads the id of one message.
func oneID(cmd *cobra.Command, args []string) (string, error) {
	if len(args) != 1 || args[0] == "" {
		return "", usagef(cmd.CommandPath()+" --help", "give the id of one message")
	}
	return args[0], nil
}

func printMessages(cmd *cobra.Command, id string, found []inboxdb.Message, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		array := jsonArray{out: out}
		for _, m := range found {
			one := jsonMessage{
				Consumer: m.Consumer, MessageID: m.ID, SettledAt: jsonTime(m.Settled), LetterState: m.LetterState,
				Attempts: m.Attempts, Error: m.Error, LastFailed: jsonTime(m.LastFailed),
			}
			if m.Outcome != "" {
				one.Outcome = &m.Outcome
			}
			if m.Letter != 0 {
				one.Letter = &m.Letter
			}
			if err := array.add(one); err != nil {
				return err
			}
		}
		if err := array.end(); err != nil {
			return err
		}
	}
	if len(found) == 0 {
		return &exitError{fmt.Errorf("no consumer knows message %s", printable(id)), exitNo, "it has not come yet, or has been pruned; cdc-relay inbox stats"}
	}
	if asJSON {
		return nil
	}
	t := newTable("CONSUMER", "OUTCOME", "SETTLED", ">DEAD LETTER", ">FAILED", "LAST", "ERROR")
	for _, m := range found {
		letter := "–"
		if m.Letter != 0 {
			letter = number(m.Letter) + " " + m.LetterState
		}
		outcome := m.Outcome
		if outcome == "" {
			outcome = "not settled"
		}
		t.add(cell(m.Consumer, 24), outcome, showTime(m.Settled), letter, strconv.Itoa(m.Attempts), showTime(m.LastFailed), cell(m.Error, 80))
	}
	t.print(out)
	return nil
}

func newInboxForget(a *app) *cobra.Command {
	var consumer consumerFlag
	cmd := &cobra.Command{
		Use:   "forget ID --consumer NAME",
		Short: "Let a consumer handle a message again",
		Long: `forget lets a consumer handle a message again the next time that it is delivered; deliver
it by resetting the offsets of the consumer's group, or by writing it to the topic again. Its
effect is not taken back. A dead letter or parked message is refused: replay or discard it.
It exits 3 when the consumer has not settled the message.`,
		Example: `  cdc-relay inbox forget 0199c5d5-7a0e-7000-8000-000000000001 --consumer billing`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := consumer.check(cmd, true); err != nil {
				return err
			}
			id, err := oneID(cmd, args)
			if err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), func(_ *config.Config, db *catalog.DB) error {
				return forget(cmd, db, consumer.name, id)
			})
		},
	}
	a.databaseFlag(cmd)
	consumer.flag(cmd, "`consumer` that is to handle it again")
	return cmd
}

// stateWaits is the SQLSTATE of a message that is not to be forgotten.
const stateWaits = "55000"

func forget(cmd *cobra.Command, db *catalog.DB, consumer, id string) error {
	known, err := inboxdb.Forget(cmd.Context(), db, consumer, id)
	switch {
	case catalog.SQLState(err) == stateWaits:
		return &exitError{
			fmt.Errorf("message %s is a dead letter of consumer %s, or parked", printable(id), printable(consumer)), exitNo,
			"replay or discard it: cdc-relay dlq --source inbox list --state all --id " + printable(id),
		}
	case err != nil:
		return err
	case !known:
		return &exitError{
			fmt.Errorf("consumer %s has not settled message %s", printable(consumer), printable(id)), exitNo,
			"cdc-relay inbox show " + printable(id),
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "consumer %s handles message %s again when it is delivered\n", printable(consumer), printable(id))
	return nil
}

// pruneBatch is how many settled messages one transaction forgets.
const pruneBatch = 1000

func newInboxPrune(a *app) *cobra.Command {
	var consumer consumerFlag
	var before string
	var force bool
	cmd := &cobra.Command{
		Use:   "prune --consumer NAME --until TIME",
		Short: "Forget what was settled long ago",
		Long: `prune forgets the messages that a consumer settled before --until. A copy of one that comes
later is handled again, so let that be longer ago than the topic keeps records, and than a
replay goes back: a time within the retention that the consumer itself keeps is refused
without --force. What is dead or parked stays. It works in small batches. A consumer's runner
prunes by itself; while it does, prune exits 3.`,
		Example: `  cdc-relay inbox prune --consumer billing --until 30d`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := consumer.check(cmd, true); err != nil {
				return err
			}
			if before == "" {
				return usagef(cmd.CommandPath()+" --until 30d", "nothing says how old; give --until")
			}
			now := time.Now()
			end, err := readTime(cmd, "until", before, now)
			if err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), func(_ *config.Config, db *catalog.DB) error {
				if err := mayPrune(cmd.Context(), db, consumer.name, now.Sub(end)); err != nil && !force {
					return err
				}
				return prune(cmd, db, consumer.name, end)
			})
		},
	}
	a.databaseFlag(cmd)
	consumer.flag(cmd, "`consumer` whose messages are forgotten")
	cmd.Flags().StringVar(&before, "until", "", "those that were settled before this `time`")
	cmd.Flags().BoolVar(&force, "force", false, "forget what the consumer's own retention keeps, too: copies of it are handled again")
	return cmd
}

// mayPrune refuses to forget what the consumer was told to remember.
func mayPrune(ctx context.Context, db *catalog.DB, consumer string, age time.Duration) error {
	keeps, err := inboxdb.Remembers(ctx, db, consumer)
	if err != nil || age >= keeps {
		return err
	}
	return usagef(fmt.Sprintf("give --until %dh or more, or --force", int64((keeps+time.Hour-1)/time.Hour)),
		"consumer %s remembers for %v: copies of what is younger would be handled again", printable(consumer), keeps)
}

func prune(cmd *cobra.Command, db *catalog.DB, consumer string, before time.Time) error {
	var done int64
	for {
		n, busy, err := inboxdb.Prune(context.WithoutCancel(cmd.Context()), db, consumer, before, pruneBatch)
		if done += n; err == nil && n == pruneBatch {
			if err = cmd.Context().Err(); err == nil {
				continue
			}
			err = &exitError{fmt.Errorf("stopped; forgot %s", plural(done, "message")), exitInterrupted, "run it again to go on"}
		}
		if busy {
			err = &exitError{fmt.Errorf("another pruner of consumer %s is at work", printable(consumer)), exitNo, "run it again later, if need be"}
		}
		if done > 0 || err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "forgot %s\n", plural(done, "message"))
		}
		return err
	}
}
