package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// letterFilter holds the flags that choose dead letters.
type letterFilter struct {
	source *source

	kind, topic, aggregate, reason, id, since, until string
	all                                              bool
}

func (f *letterFilter) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.kind, "type", "", "only those of this event `type`")
	flags.StringVar(&f.topic, "topic", "", "only those for this `topic`")
	flags.StringVar(&f.aggregate, "aggregate", "", "only those of this aggregate, by its `id` (the record key)")
	flags.StringVar(&f.reason, "reason", "", "only those with this `reason`: "+strings.Join(new(source).reasons(), ", ")+
		"; of the inbox: "+strings.Join((&source{name: sourceInbox}).reasons(), ", "))
	flags.StringVar(&f.id, "id", "", "only the one with this message `id`")
	flags.StringVar(&f.since, "since", "", "only those that became dead letters at this `time` or later")
	flags.StringVar(&f.until, "until", "", "only those that became dead letters before this `time`")
}

// allFlag adds --all to a command that changes dead letters.
func (f *letterFilter) allFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.all, "all", false, "all of them; needed when nothing else chooses")
}

// read turns flags and arguments, which are numbers of dead letters, into a filter.
func (f *letterFilter) read(cmd *cobra.Command, args []string, now time.Time) (deadletter.Filter, error) {
	out := deadletter.Filter{
		Type: f.kind, Topic: f.topic, Aggregate: f.aggregate, ID: f.id,
	}
	for _, name := range []string{"type", "topic", "aggregate", "reason", "id", "since", "until"} {
		// An empty variable in a script must not mean "all".
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed && flag.Value.String() == "" {
			return out, usagef(cmd.CommandPath()+" --help", "--%s is empty", name)
		}
	}
	var err error
	if out.Reason, err = f.source.readReason(cmd, f.reason); err != nil {
		return out, err
	}
	if out.Since, err = readTime(cmd, "since", f.since, now); err != nil {
		return out, err
	}
	if out.Until, err = readTime(cmd, "until", f.until, now); err != nil {
		return out, err
	}
	if !out.Since.IsZero() && !out.Until.IsZero() && !out.Since.Before(out.Until) {
		return out, usagef(cmd.CommandPath()+" --since 48h --until 24h", "--since is not before --until")
	}
	out.Letters, err = readNumbers(cmd, args)
	return out, err
}

// chosen refuses a command that changes dead letters when nothing says which.
func (f *letterFilter) chosen(cmd *cobra.Command, args []string) error {
	given := len(args) > 0
	for _, name := range []string{"type", "topic", "aggregate", "reason", "id", "since", "until"} {
		given = given || cmd.Flags().Changed(name)
	}
	switch {
	case !given && !f.all:
		return usagef(cmd.CommandPath()+" --all --dry-run", "nothing says which dead letters; give their numbers or a filter, or --all")
	case given && f.all:
		return usagef(cmd.CommandPath()+" --help", "--all and a filter exclude each other")
	}
	return nil
}

// readNumbers reads the numbers of dead letters.
func readNumbers(cmd *cobra.Command, args []string) ([]int64, error) {
	var ids []int64
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, usagef(cmd.CommandPath()+" --id "+arg, "%q is not the number of a dead letter; message ids go with --id", arg)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// timeForms are how a time may be written; the last but one is how the tables show it.
var timeForms = []string{time.RFC3339Nano, "2006-01-02T15:04:05", tableTime, time.DateOnly}

// readTime reads a point in time, or how long ago one was; "" is the zero time.
func readTime(cmd *cobra.Command, flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, form := range timeForms {
		if t, err := time.Parse(form, text); err == nil {
			return t, nil
		}
	}
	if ago, ok := readAge(text); ok {
		return now.Add(-ago), nil
	}
	return time.Time{}, usagef(cmd.CommandPath()+" --"+flag+" 24h",
		"--%s %q is not a time; write 2006-01-02T15:04:05Z, 2006-01-02, or how long ago, such as 24h or 7d", flag, text)
}

// readAge reads a duration that may be given in days.
func readAge(text string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0
}
