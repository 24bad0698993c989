package publish

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

const (
	// patience is how long a lane may fail before it says so: most failures are
	// over within a second or two.
	patience = 10 * time.Second
	// remindEvery is how often it says so again.
	remindEvery = 5 * time.Minute
)

// trouble is what keeps a lane from publishing.
type trouble struct {
	since    time.Time // of the first failure in a row; zero when all is well
	attempts int       // failures in a row
	halted   bool      // somebody has to act
	reason   string
	logged   time.Time // when it was last said
}

// failing notes a failure that heals by itself.
func (l *lane) failing(o outcome, now time.Time) {
	l.troubled(false, o.err.Error(), now)
}

// halt notes a failure that somebody has to act on. A row that is refused alone is
// named by its id and position, never by its contents.
func (l *lane) halt(b *batch, o outcome, now time.Time) {
	reason := o.err.Error()
	switch {
	case b.undecided:
		reason = fmt.Sprintf("%s; %d rows may or may not have been appended and are repeated unchanged", reason, b.n)
	case b.n == 1:
		r := l.queue.at(0)
		reason = fmt.Sprintf("%s; message id %.64q at position %s cannot be published", reason, r.id, r.pos)
	}
	l.troubled(true, reason, now)
}

func (l *lane) troubled(halted bool, reason string, now time.Time) {
	t := &l.trouble
	if t.attempts == 0 {
		t.since = now
	}
	t.attempts++
	changed := halted != t.halted
	t.halted, t.reason = halted, reason
	if changed && halted || t.logged.IsZero() && now.Sub(t.since) >= patience {
		l.say(now)
	}
}

// remind says again what has been said, every five minutes.
func (l *lane) remind(now time.Time) {
	if t := &l.trouble; !t.logged.IsZero() && now.Sub(t.logged) >= remindEvery {
		l.say(now)
	}
}

func (l *lane) say(now time.Time) {
	t := &l.trouble
	t.logged = now
	level, text := slog.LevelWarn, "publishing fails, trying again"
	if t.halted {
		level, text = slog.LevelError, "publishing halted"
	}
	l.log(level, text, slog.String("reason", t.reason),
		slog.Int("attempts", t.attempts), slog.Duration("for", now.Sub(t.since)))
}

// recovered notes that the lane has got on.
func (l *lane) recovered(now time.Time) {
	t := l.trouble
	l.trouble = trouble{}
	l.backoff.reset()
	l.retryAt = time.Time{}
	if !t.logged.IsZero() {
		l.log(slog.LevelInfo, "publishing again", slog.Int("attempts", t.attempts), slog.Duration("after", now.Sub(t.since)))
	}
}

func (l *lane) log(level slog.Level, text string, attrs ...any) {
	l.p.log.With(slog.String("topic", l.topic.name), slog.Int("partition", l.partition)).Log(context.Background(), level, text, attrs...)
}
