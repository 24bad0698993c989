package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/crash"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// DeadLetters says what becomes of rows that cannot be published.
type DeadLetters struct {
	// Enabled has rows that can never be published become dead letters. Without it
	// they halt. What is a dead letter already is one in either case.
	Enabled bool
	// MaxValueBytes is the size up to which a value is kept with its dead letter. A
	// larger one is read from the outbox table when it is replayed.
	MaxValueBytes int
	// Retention is the age from which dead letters that were replayed or discarded
	// are deleted; 0 keeps them.
	Retention time.Duration
	// Window and Share are the breaker: of the last Window rows no more than this
	// share may become dead letters. A share of 1 switches it off.
	Window int
	Share  float64
}

// headerReplay is the header with the number of the replay that a record comes from.
const headerReplay = "cdc-relay-replay"

// Refused makes a row that is not published a dead letter, and a replay that is
// refused one again. It is what publish.Config.Refused must call: it returns nil once
// the letter is in the table for certain, and an error only if for certain it is not,
// or ctx, the publisher's session, has ended.
func (r *Relay) Refused(ctx context.Context, f *publish.Refusal) error {
	l := r.letters.Load()
	// The letters of a session are there before the publisher's session begins and
	// until it has ended. So if that lives now, they were of the same session.
	if l == nil || ctx.Err() != nil {
		return publish.ErrSessionOver
	}
	return l.bury(ctx, f, origin{table: r.table(f.Source)})
}

// source is the number under which a row's table goes through its lane, 0 for none.
func (r *Relay) source(schema, name string) uint32 {
	table := catalog.TableName{Schema: schema, Name: name}
	return uint32(1 + slices.IndexFunc(r.cfg.Spec.Tables, func(t catalog.TableSpec) bool { return t.Name == table }))
}

// table is the name of a source as SQL spells it.
func (r *Relay) table(source uint32) string {
	if source == 0 || int(source) > len(r.cfg.Spec.Tables) {
		return ""
	}
	return r.cfg.Spec.Tables[source-1].Name.String()
}

// origin is what is known of a row beside its record.
type origin struct {
	table  string
	unread bool // there is a payload, which could not be read
}

// bury makes the row of f a dead letter. The row is held from before the letter is
// written: from then on its marker may come by, and its lane may be done with it.
func (l *letters) bury(ctx context.Context, f *publish.Refusal, from origin) error {
	r := l.s.r
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.over, cancel)()
	ordinal, err := l.admit(ctx, f.Seq)
	if err != nil {
		return err
	}
	letter := r.letter(l.s, f, from)
	letter.Ordinal, letter.Marker = ordinal, deadletter.NewMarker()
	m, _ := parseMarker([]byte(letter.Marker))
	l.await(f.Seq, m, false)
	crash.At(crash.DeadLetter)
	if err := l.write(ctx, letter, m); err != nil {
		r.breaker.withdraw(ordinal)
		switch {
		case errors.Is(err, catalog.ErrNotHolder):
			// Whatever an earlier attempt has done, the next session knows it. Until this
			// one has ended there is nothing to say: that is no halt.
			l.s.fail(ErrDeposed)
			<-ctx.Done()
			return ctx.Err()
		case ctx.Err() == nil:
			l.came(m) // It never will.
		}
		return err
	}
	crash.At(crash.DeadLettered)
	l.written(m)
	r.recoveredFrom(problemLetters)
	r.metrics.buried(letter)
	r.buried.say(r.log, letter)
	return nil
}

// write puts a letter into the table. While it is open whether that was done it goes
// on, always with the same marker: whoever was told that it was not may have the
// broker asked once more, and the row would be in both places. It returns an error if
// the letter is not in the table for certain, or ctx has ended.
func (l *letters) write(ctx context.Context, letter *deadletter.Letter, m marker) error {
	r, open := l.s.r, false
	for {
		stored, err := l.attempt(ctx, letter)
		switch {
		case err == nil && stored != letter.Marker:
			// Not written now, so its marker may have come by unnoticed. The next session
			// knows it from the start.
			err = fmt.Errorf("the row at %s is a dead letter already", letter.Position)
			l.s.fail(err)
			return err
		case err == nil, !l.awaits(m): // the marker has come by
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, catalog.ErrNotHolder), !open && !transient(err):
			return fmt.Errorf("no dead letter can be written: %w", err)
		}
		open = true
		r.failing(problemLetters, "no dead letter can be written, trying again", err)
		if !wait(ctx, storeRetry) {
			return ctx.Err()
		}
	}
}

func (l *letters) attempt(ctx context.Context, letter *deadletter.Letter) (string, error) {
	st, err := l.open(ctx)
	if err != nil {
		return "", err
	}
	return st.put(ctx, l.s.stream.PID(), letter)
}

// letter is what is kept of a row.
func (r *Relay) letter(s *session, f *publish.Refusal, from origin) *deadletter.Letter {
	out := &deadletter.Letter{
		ID: f.Letter, Slot: r.cfg.Spec.Slot, SystemID: s.system.SystemID, Position: f.Position, State: deadletter.Dead,
		Table: from.table, MessageID: f.ID, Topic: f.Topic, Key: f.Key, Value: f.Value, ValueBytes: -1, ValueKept: true,
		RecordTime: f.Time, CommitTime: f.CommitTime,
		Reason: deadletter.Reason(f.Reason), Error: fmt.Sprint(f.Err), Attempts: f.Attempts,
		FirstFailed: f.First, LastFailed: f.Last, MayBePublished: f.MayBePublished,
	}
	if f.Value != nil {
		out.ValueBytes = int64(len(f.Value))
	}
	if len(f.Value) > r.cfg.DeadLetters.MaxValueBytes {
		out.Value, out.ValueKept = nil, false
	}
	if from.unread {
		out.ValueBytes, out.ValueKept = 0, false
	}
	for _, h := range f.Headers {
		if h.Name == headerReplay {
			out.Replays, _ = strconv.Atoi(string(h.Value)) // The relay has written it.
			continue
		}
		out.Headers = append(out.Headers, deadletter.Header{Name: h.Name, Value: h.Value})
	}
	if i := slices.IndexFunc(out.Headers, func(h deadletter.Header) bool { return h.Name == "type" }); i >= 0 {
		out.Type = string(out.Headers[i].Value)
	}
	return out
}
