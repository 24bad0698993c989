package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/inboxdb"
)

// source says whose dead letters a command works with.
type source struct{ name, consumer string }

const (
	sourceRelay = "relay"
	sourceInbox = "inbox"
)

func (s *source) flags(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&s.name, "source", sourceRelay, "`whose` dead letters: relay, or inbox for those of consumers")
	flags.StringVar(&s.consumer, "consumer", "", "with --source inbox: only those of this `consumer`")
}

func (s *source) inbox() bool { return s.name == sourceInbox }

func (s *source) check(cmd *cobra.Command) error {
	if s.name != sourceRelay && s.name != sourceInbox {
		return usagef(cmd.CommandPath()+" --source inbox", "unknown source %q; it is relay or inbox", s.name)
	}
	if !cmd.Flags().Changed("consumer") {
		return nil
	}
	if s.consumer == "" {
		return usagef(cmd.CommandPath()+" --help", "--consumer is empty")
	}
	if !s.inbox() {
		return usagef(cmd.CommandPath()+" --source inbox --consumer "+s.consumer, "--consumer needs --source inbox")
	}
	return nil
}

// reasons are those that the flag --reason takes.
func (s *source) reasons() []string {
	if s.inbox() {
		return names(inboxdb.MaxDeliveries, inboxdb.Permanent, inboxdb.Crashed, inboxdb.NoID, inboxdb.Behind, inboxdb.Gap)
	}
	return names(deadletter.TooLarge, deadletter.InvalidRecord, deadletter.InvalidTimestamp, deadletter.InvalidTopic,
		deadletter.InvalidRow, deadletter.UnknownTopic, deadletter.Attempts, deadletter.ValueGone)
}

// states are those that the flag --state takes.
func (s *source) states() []string {
	if s.inbox() {
		return names(deadletter.Dead, deadletter.Parked, deadletter.Due, deadletter.Processed, deadletter.Discarded)
	}
	return names(deadletter.Dead, deadletter.Replayed, deadletter.Discarded)
}

func names[T ~string](values ...T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

const allStates = "all"

// readStates reads the flag --state.
func (s *source) readStates(cmd *cobra.Command, given []string) ([]deadletter.State, error) {
	known := s.states()
	var out []deadletter.State
	for _, name := range given {
		if name == allStates && len(given) == 1 {
			return nil, nil
		}
		if !slices.Contains(known, name) {
			return nil, usagef(cmd.CommandPath()+" --state dead", "unknown state %q; choose among %s, or all", name, strings.Join(known, ", "))
		}
		out = append(out, deadletter.State(name))
	}
	return out, nil
}

// readReason reads the flag --reason.
func (s *source) readReason(cmd *cobra.Command, given string) (deadletter.Reason, error) {
	known := s.reasons()
	if given == "" || slices.Contains(known, given) {
		return deadletter.Reason(given), nil
	}
	next := "one of " + strings.Join(known, ", ")
	if near := config.Nearest(given, known); near != "" {
		next = cmd.CommandPath() + " --reason " + near
	}
	return "", usagef(next, "unknown reason %q", given)
}

// entry is a dead letter of the relay, or with inbox one of a consumer.
type entry struct {
	deadletter.Letter

	inbox *inboxdb.Place
}

// store is where dead letters are kept. Owners are slots, or consumers.
type store interface {
	list(ctx context.Context, f deadletter.Filter, limit int, after int64) ([]entry, error)
	count(ctx context.Context, f deadletter.Filter) (int64, error)
	get(ctx context.Context, owner string, id int64) (*entry, bool, error)
	stats(ctx context.Context, owner string, states ...deadletter.State) ([]deadletter.Stat, error)
	discard(ctx context.Context, ids []int64) (int64, error)
	purge(ctx context.Context, owner string, before time.Time, limit int) (int64, error)
}

// relayStore is the table of the relay.
type relayStore struct{ db *catalog.DB }

func (s relayStore) list(ctx context.Context, f deadletter.Filter, limit int, after int64) ([]entry, error) {
	found, err := deadletter.List(ctx, s.db, f, limit, after)
	page := make([]entry, len(found))
	for i := range found {
		page[i].Letter = found[i]
	}
	return page, err
}

func (s relayStore) count(ctx context.Context, f deadletter.Filter) (int64, error) {
	return deadletter.Count(ctx, s.db, f)
}

func (s relayStore) get(ctx context.Context, owner string, id int64) (*entry, bool, error) {
	l, found, err := deadletter.Get(ctx, s.db, owner, id)
	if !found || err != nil {
		return nil, false, err
	}
	return &entry{Letter: *l}, true, nil
}

func (s relayStore) stats(ctx context.Context, owner string, states ...deadletter.State) ([]deadletter.Stat, error) {
	return deadletter.Stats(ctx, s.db, owner, states...)
}

func (s relayStore) discard(ctx context.Context, ids []int64) (int64, error) {
	return deadletter.Discard(ctx, s.db, ids)
}

func (s relayStore) purge(ctx context.Context, owner string, before time.Time, limit int) (int64, error) {
	return deadletter.Purge(ctx, s.db, owner, before, limit)
}

// inboxStore is the table of consumers.
type inboxStore struct{ db *catalog.DB }

func (s inboxStore) list(ctx context.Context, f deadletter.Filter, limit int, after int64) ([]entry, error) {
	found, err := inboxdb.List(ctx, s.db, f, limit, after)
	page := make([]entry, len(found))
	for i := range found {
		page[i] = entry{Letter: found[i].Letter, inbox: &found[i].Place}
	}
	return page, err
}

func (s inboxStore) count(ctx context.Context, f deadletter.Filter) (int64, error) {
	return inboxdb.Count(ctx, s.db, f)
}

func (s inboxStore) get(ctx context.Context, owner string, id int64) (*entry, bool, error) {
	l, found, err := inboxdb.Get(ctx, s.db, owner, id)
	if !found || err != nil {
		return nil, false, err
	}
	return &entry{Letter: l.Letter, inbox: &l.Place}, true, nil
}

func (s inboxStore) stats(ctx context.Context, owner string, states ...deadletter.State) ([]deadletter.Stat, error) {
	return inboxdb.Stats(ctx, s.db, owner, states...)
}

func (s inboxStore) discard(ctx context.Context, ids []int64) (int64, error) {
	return inboxdb.Discard(ctx, s.db, ids)
}

func (s inboxStore) purge(ctx context.Context, owner string, before time.Time, limit int) (int64, error) {
	return inboxdb.Purge(ctx, s.db, owner, before, limit)
}
