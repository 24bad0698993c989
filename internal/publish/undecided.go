package publish

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

var errEpochs = errors.New("producer epochs are used up: restart the relay")

// search gives up a batch that may have been appended but cannot be repeated: the
// broker has forgotten its producer, or wants fewer rows. A new epoch comes first,
// so that a copy still under way is refused once the new epoch is in the partition;
// then the partition is read.
func (l *lane) search(b *batch, o outcome, now time.Time) {
	if !l.raise(b, now) {
		return
	}
	l.p.metrics.givenUp.Inc()
	if l.past(b) {
		return
	}
	l.todo = reading{purpose: search, from: l.sequence.last + 1, to: -1}
	l.p.log.Warn("a batch may have been appended and cannot be repeated: reading its partition",
		slog.String("topic", l.topic.name), slog.Int("partition", l.partition),
		slog.Int("rows", b.n), slog.String("reason", o.err.Error()))
}

// swallowed handles an acknowledgement whose offset the lane has had acknowledged,
// or has read, before. Either the broker took the batch for an earlier one, by its
// numbers, and dropped it: then it is published again. Or the partition was made
// again, or has lost records that were acknowledged.
func (l *lane) swallowed(b *batch, base int64, now time.Time) {
	if !l.raise(b, now) {
		return
	}
	b.undecided = true // Until that has been read, be it in the next session.
	l.mark(b)
	l.todo = reading{purpose: repeated, from: base, to: base + int64(b.n)}
	l.p.log.Warn("acknowledged offset is not new: reading it, to publish the batch again in a new producer epoch",
		slog.String("topic", l.topic.name), slog.Int("partition", l.partition),
		slog.Int64("base_offset", base), slog.Int64("last_offset", l.sequence.last), slog.Int("rows", b.n))
}

// deposed handles the answer that a higher epoch of the producer exists.
func (l *lane) deposed(b *batch, o outcome, now time.Time) {
	p := l.p
	switch {
	case b.session != p.session || p.outdated(b.producer, b.epoch, l.sequence):
		l.search(b, o, now)
	case !p.alive():
		// The one who holds the slot now has raised it. This session is about to end.
		l.retryAt = now.Add(l.backoff.next())
		l.failing(o, now)
	default:
		if err := p.overtaken(now); err != nil {
			o.err = fmt.Errorf("%w: %w", o.err, err)
		}
		l.retryAt = now.Add(haltPause)
		l.halt(b, o, now)
	}
}

// raise has the rows of a batch go on in a new epoch, once for each batch. It
// reports false, and halts, when there is none.
func (l *lane) raise(b *batch, now time.Time) bool {
	if !b.raised && !l.p.raise(l.sequence) {
		l.retryAt = now.Add(haltPause)
		l.halt(b, outcome{err: errEpochs}, now)
		return false
	}
	b.raised = true
	return true
}

// past ends a batch of a session that is over: the server sends its rows again, and
// the lane reads its partition before it writes them. It reports false for others.
func (l *lane) past(b *batch) bool {
	if b.session == l.p.session {
		return false
	}
	l.owes, l.todo = !b.foreign, reading{purpose: opening}
	if !b.foreign {
		l.suspect = b.last
	}
	l.discard(b)
	return true
}

// forget drops what the lane knows of its partition, which means nothing any more.
func (l *lane) forget() {
	l.sequence.last, l.known, l.owes, l.doubt = -1, false, false, nil
	l.suspect = position.Position{}
	b := l.batch
	if b == nil {
		return
	}
	b.foreign = true
	if l.todo.purpose == repeated {
		l.past(b)
	}
}
