package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/inboxdb"
)

// runnerAway is how long no runner of a consumer has been seen before there is taken to be none. They
// report every few seconds.
const runnerAway = 30 * time.Second

// jsonInboxLetter is a consumer's letter as JSON; see jsonLetter.
type jsonInboxLetter struct {
	ID            int64        `json:"id"`
	Consumer      string       `json:"consumer"`
	State         string       `json:"state"`
	Reason        string       `json:"reason"`
	Error         string       `json:"error"`
	Deliveries    int          `json:"deliveries"`
	FirstFailedAt *time.Time   `json:"first_failed_at"`
	LastFailedAt  *time.Time   `json:"last_failed_at"`
	MessageID     string       `json:"message_id"`
	Type          string       `json:"type"`
	Topic         string       `json:"topic"`
	Partition     int          `json:"partition"`
	Offset        int64        `json:"offset"`
	Key           *string      `json:"key"`
	KeyBase64     string       `json:"key_base64,omitempty"`
	Version       *int64       `json:"version"`
	Headers       []jsonHeader `json:"headers"`
	ValueBytes    *int64       `json:"value_bytes"`
	Value         *string      `json:"value,omitempty"`
	ValueBase64   string       `json:"value_base64,omitempty"`
	RecordTime    *time.Time   `json:"record_time"`
	Blocks        bool         `json:"blocks"`
	Replays       int          `json:"replays"`
	NotBefore     *time.Time   `json:"not_before"`
	CreatedAt     *time.Time   `json:"created_at"`
	ChangedAt     *time.Time   `json:"changed_at"`
}

func inboxJSON(l *deadletter.Letter, p *inboxdb.Place, payload bool) jsonInboxLetter {
	out := jsonInboxLetter{
		ID: l.ID, Consumer: p.Consumer, State: string(l.State), Reason: string(l.Reason), Error: l.Error,
		Deliveries: l.Attempts, FirstFailedAt: jsonTime(l.FirstFailed), LastFailedAt: jsonTime(l.LastFailed),
		MessageID: string(l.MessageID), Type: l.Type, Topic: l.Topic, Partition: p.Partition, Offset: p.Offset,
		Version: p.Version, Headers: jsonHeaders(l.Headers, payload), RecordTime: jsonTime(l.RecordTime),
		Blocks: p.Blocks, Replays: l.Replays, NotBefore: jsonTime(p.NotBefore),
		CreatedAt: jsonTime(l.Created), ChangedAt: jsonTime(l.Changed),
	}
	out.Key, out.KeyBase64 = jsonText(l.Key)
	if l.ValueBytes >= 0 {
		out.ValueBytes = &l.ValueBytes
	}
	if payload {
		out.Value, out.ValueBase64 = jsonText(l.Value)
	}
	return out
}

// printPlace shows what only a consumer's letter has.
func printPlace(field func(name, value string), l *entry) {
	p := l.inbox
	field("deliveries", strconv.Itoa(l.Attempts))
	field("failed", showTime(l.FirstFailed)+" first, "+showTime(l.LastFailed)+" last")
	blocks := "no"
	if p.Blocks {
		blocks = "yes: later messages of its key wait"
	}
	field("blocks", blocks)
	if !p.NotBefore.IsZero() {
		field("next try", "not before "+showTime(p.NotBefore))
	}
	field("consumer", printable(p.Consumer))
	field("partition", fmt.Sprintf("%d at offset %d", p.Partition, p.Offset))
	if p.Version != nil {
		field("version", strconv.FormatInt(*p.Version, 10))
	}
}

// makeDue replays one batch of a consumer's.
func (r *replay) makeDue(ctx context.Context, ids []int64) (int64, error) {
	done, err := inboxdb.Replay(ctx, r.work.letters.db, ids)
	r.replayed = append(r.replayed, done...)
	return int64(len(done)), err
}

// jsonRunner is a consumer that no runner was seen of.
type jsonRunner struct {
	Consumer string `json:"consumer"`
	SeenAge  *int64 `json:"seen_at_age_s"` // null: never
}

// missingText says it for people.
func (j jsonRunner) String() string {
	if j.SeenAge == nil {
		return "no runner of consumer " + printable(j.Consumer) + " has ever been seen"
	}
	return fmt.Sprintf("no runner of consumer %s has been seen for %s", printable(j.Consumer), ageText(time.Duration(*j.SeenAge)*time.Second))
}

// lookAtRunners finds out whether anybody is there to handle what was replayed.
func (r *replay) lookAtRunners(ctx context.Context, l *letters) error {
	runners, err := inboxdb.Runners(ctx, l.db, r.replayed)
	if err != nil {
		return err
	}
	r.missing = nil
	for _, one := range runners {
		if age := int64(one.Age / time.Second); !one.Seen {
			r.missing = append(r.missing, jsonRunner{Consumer: one.Consumer})
		} else if one.Age > runnerAway {
			r.missing = append(r.missing, jsonRunner{one.Consumer, &age})
		}
	}
	return nil
}

// awaitRunner waits until no replayed letter is due any more.
func (r *replay) awaitRunner(ctx context.Context, l *letters) error {
	if r.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, r.timeout, errWaitTimeout)
		defer stop()
	}
	fmt.Fprintln(r.stderr, "waiting until the consumer's runner has handled them")
	told, due := time.Now(), int64(len(r.replayed))
	for {
		n, err := l.countIn(ctx, r.replayed, deadletter.Due)
		if err == nil {
			due = n
		}
		if err == nil && due == 0 {
			break
		}
		if err == nil && time.Since(told) >= progressPause {
			told = time.Now()
			if err = r.lookAtRunners(ctx, l); err == nil {
				fmt.Fprintf(r.stderr, "still waiting: %d due%s\n", due, r.missingText("; "))
			}
		}
		if err == nil {
			err = until(ctx, time.Now().Add(waitPause))
		}
		if err != nil {
			return r.notHandled(ctx, due, err)
		}
	}
	r.waited = true
	for ids := range slices.Chunk(r.replayed, listPage) {
		again, err := l.list(ctx, deadletter.Filter{Owner: l.owner, Letters: ids, States: []deadletter.State{deadletter.Dead}}, len(ids), 0)
		if err != nil {
			return err
		}
		r.refused = append(r.refused, again...)
	}
	if len(r.refused) == 0 {
		return nil
	}
	return &exitError{
		fmt.Errorf("%s dead again", plural(int64(len(r.refused)), "message")), exitPartly,
		"cdc-relay dlq --source inbox show NUMBER tells why; correct that and replay again, or discard",
	}
}

// countIn counts those of the letters that are in a state.
func (l *letters) countIn(ctx context.Context, ids []int64, state deadletter.State) (n int64, err error) {
	for some := range slices.Chunk(ids, listPage) {
		one, err := l.count(ctx, deadletter.Filter{Owner: l.owner, Letters: some, States: []deadletter.State{state}})
		if err != nil {
			return n, err
		}
		n += one
	}
	return n, nil
}

// notHandled says that the wait has ended without an answer.
func (r *replay) notHandled(ctx context.Context, due int64, err error) error {
	if ctx.Err() == nil {
		return err
	}
	const next = "see that the consumer runs; what is due stays so until its runner handles it"
	text := fmt.Sprintf("%d still due", due)
	if !errors.Is(context.Cause(ctx), errWaitTimeout) {
		return &exitError{errors.New("interrupted; " + text), exitInterrupted, next}
	}
	return &exitError{errors.New(text + " after " + r.timeout.String() + r.missingText("; ")), exitPartly, next}
}

// missingText names the consumers without a runner, each after sep.
func (r *replay) missingText(sep string) string {
	var b strings.Builder
	for _, m := range r.missing {
		b.WriteString(sep + m.String())
	}
	return b.String()
}

// printDue is print for a consumer's letters.
func (r *replay) printDue(out io.Writer) {
	if r.work.done > 0 {
		fmt.Fprintf(out, "made %s due\n", plural(r.work.done, "dead letter"))
	}
	switch {
	case r.waited:
		fmt.Fprintf(out, "processed %d, dead again %d\n", len(r.replayed)-len(r.refused), len(r.refused))
	case len(r.missing) > 0:
		fmt.Fprintf(out, "%s; they stay due until one runs\n", strings.TrimPrefix(r.missingText("; "), "; "))
	case !r.wait && r.work.done > 0:
		fmt.Fprintln(out, "the consumer's runner handles them within seconds; --wait would wait for that")
	}
	if len(r.refused) > 0 {
		fmt.Fprintln(out)
		printSome(out, r.refused, int64(len(r.refused)))
	}
}
