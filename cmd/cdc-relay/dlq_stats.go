package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

func newDLQStats(a *app, src *source) *cobra.Command {
	var o output
	var exitCode bool
	var stateNames []string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count dead letters by state and reason",
		Long: `stats counts dead letters by state and reason, with the age of the oldest. With -o json it
prints an array of objects with the fields slot (with --source inbox: consumer), state,
reason, count, oldest.

With --exit-code it exits 3 while there are any that are dead, for a job that tells
somebody; with --state, any in that state.`,
		Example: `  cdc-relay dlq stats
  cdc-relay dlq stats --state dead --exit-code`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			wanted, err := src.readStates(cmd, stateNames)
			if err != nil {
				return err
			}
			return a.withLetters(cmd, src, func(l *letters) error {
				stats, err := l.stats(cmd.Context(), l.owner, wanted...)
				if err != nil {
					return err
				}
				if err := l.printStats(cmd, stats, o.json()); err != nil || !exitCode {
					return err
				}
				return alarm(stats, cmd.Flags().Changed("state"))
			})
		},
	}
	a.databaseFlag(cmd)
	o.flag(cmd)
	cmd.Flags().StringSliceVar(&stateNames, "state", []string{allStates}, "only these `states`: dead, replayed, discarded, or all; of the inbox: dead, parked, due, processed, discarded, or all")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit 3 when any is dead")
	return cmd
}

// alarm is the answer to --exit-code.
func alarm(stats []deadletter.Stat, anyState bool) error {
	var n int64
	for _, s := range stats {
		if anyState || s.State == deadletter.Dead {
			n += s.Count
		}
	}
	if n == 0 {
		return nil
	}
	return &exitError{fmt.Errorf("there are %s", plural(n, "dead letter")), exitNo, "cdc-relay dlq list"}
}

// jsonStat is a count as JSON.
type jsonStat struct {
	Slot     string     `json:"slot,omitempty"`
	Consumer string     `json:"consumer,omitempty"`
	State    string     `json:"state"`
	Reason   string     `json:"reason"`
	Count    int64      `json:"count"`
	Oldest   *time.Time `json:"oldest"`
}

func (l *letters) printStats(cmd *cobra.Command, stats []deadletter.Stat, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		array := jsonArray{out: out}
		for _, s := range stats {
			one := jsonStat{Slot: s.Owner, State: string(s.State), Reason: string(s.Reason), Count: s.Count, Oldest: jsonTime(s.Oldest)}
			if l.inbox {
				one.Slot, one.Consumer = "", s.Owner
			}
			if err := array.add(one); err != nil {
				return err
			}
		}
		return array.end()
	}
	if len(stats) == 0 {
		text, err := l.none(cmd.Context(), "dead letters")
		if err == nil {
			fmt.Fprintln(out, text)
		}
		return err
	}
	head := []string{"STATE", "REASON", ">COUNT", "OLDEST", ">AGE"}
	if l.inbox {
		head = append([]string{"CONSUMER"}, head...)
	}
	t := newTable(head...)
	for _, s := range stats {
		cells := []string{string(s.State), printable(string(s.Reason)), strconv.FormatInt(s.Count, 10), showTime(s.Oldest), ageText(time.Since(s.Oldest))}
		if l.inbox {
			cells = append([]string{cell(s.Owner, 24)}, cells...)
		}
		t.add(cells...)
	}
	t.print(out)
	return nil
}

// ageText is a duration for people, in its largest unit.
func ageText(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", max(0, d/time.Second))
}
