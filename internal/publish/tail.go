package publish

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/crash"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// purpose is why a lane has to read its partition before it writes the next batch.
type purpose uint8

const (
	// nothing: it has not.
	nothing purpose = iota
	// opening: rows that the server sends again may have been published, by an
	// earlier process or by a batch of a past session that was given up.
	opening
	// glance: nothing that the server sends can have been published. But what is at the
	// end may say that this is not the primary any more, or another history.
	glance
	// between: the first batch after a reading does not follow what was read, so
	// somebody has written between the two.
	between
	// search: the batch that is undecided is given up. Is it there?
	search
	// repeated: the batch was acknowledged at an offset that is not new. Is it there?
	repeated
)

// reading is a part of a partition that is to be read.
type reading struct {
	purpose purpose
	// from and to are the first offset and the one behind the last; -1 is the start
	// or the end of the partition.
	from, to int64
	// What records are compared with.
	session    *session
	partitions uint32
	settled    position.Position
}

// anchor is the highest position of the lane's own rows that was found in its
// partition, or acknowledged in a past session. That rows at or below it are there is
// no more than likely: positions are used again after a restore, also one in the
// middle of the process's life, and tools copy records with their headers. So they are
// passed over provisionally, and hold the watermark, until the anchor's own row comes
// by in this lane.
type anchor struct {
	pos    position.Position
	idHash uint64
	found  purpose // of the reading, nothing for what was acknowledged
	// held is the lowest sequence of the rows passed over, 0 while there is none.
	held uint64
	rows int // passed over
}

// due reports whether the lane has to read before it goes on. A lane that opens
// reads when it has a row from before the horizon: what commits later cannot have
// been published.
func (l *lane) due() bool {
	p := l.p
	switch {
	case l.todo.purpose != opening:
		return l.todo.purpose != nothing
	case l.batch != nil || l.queue.len() == 0:
		return false // A batch of a past session is decided first.
	case l.owes:
	case !p.cfg.Resume:
		l.todo = reading{}
		return false
	case l.queue.at(0).pos.Commit >= p.session.WALEnd:
		if l.known {
			l.todo = reading{}
			return false
		}
		l.todo.purpose = glance
	}
	l.todo.from, l.todo.to = -1, -1
	if l.known {
		l.todo.from = l.sequence.last + 1
	}
	return true
}

// reading is the task to read what is due, or to wait until that is allowed.
func (l *lane) reading(now time.Time) task {
	if !l.p.alive() {
		return task{wait: alivePoll}
	}
	if l.readSince.IsZero() {
		l.readSince = now
	}
	if wait, ok := l.p.mayRead(now); !ok {
		return task{wait: wait}
	}
	r := l.todo
	r.session, r.partitions, r.settled = l.p.session, uint32(l.topic.partitions), l.settled
	return task{read: r}
}

// read reads what is to be read, on the lane's goroutine. One lane reads at a time,
// which bounds the memory of the answers.
func (l *lane) read(ctx context.Context, r reading) {
	p := l.p
	until, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.session.over, cancel)()
	s := scan{reading: r, p: p, topic: l.topic.name, partition: l.partition}
	var err error
	select {
	case p.reader <- struct{}{}:
		err = s.run(until)
		<-p.reader
	case <-until.Done():
		return
	}
	if until.Err() != nil {
		return
	}
	if err == nil {
		crash.At(crash.Scanned)
	} else if !broker.MayHaveBeenWritten(err) || ruleFor(broker.Code(err)).refresh {
		p.broker.Refresh()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.gone || p.session != r.session || !p.alive() {
		return // What is there may be the work of whoever holds the slot now.
	}
	l.learn(r, &s.found, err, time.Now())
}

// learn acts on what a reading has found.
func (l *lane) learn(r reading, f *found, err error, now time.Time) {
	p := l.p
	switch code := kafka.Error(broker.Code(err)); {
	case err == nil:
		p.health.observe(nil, now)
	case code == kafka.TopicAuthorizationFailed || code == kafka.UnsupportedVersion:
		l.unreadable(r, err, now)
		return
	default:
		if code == 0 {
			p.health.observe(err, now)
		}
		l.retryAt = now.Add(l.backoff.next())
		l.troubled(false, err.Error(), now)
		return
	}
	l.topic.unreadable = false
	l.recovered(now)
	l.todo, l.readSince = reading{}, time.Time{}
	b := l.batch
	if (r.purpose == search || r.purpose == repeated) && !l.past(b) {
		l.release() // Its rows stay.
	}
	switch {
	case f.timeline > r.session.Timeline:
		l.lose(&TimelineError{l.topic.name, l.partition, f.timeline}, now)
	case f.end <= l.sequence.last:
		l.unlike(now, "it ends at offset %d, but a record was acknowledged at offset %d", f.end, l.sequence.last)
	case r.purpose == repeated:
		if f.ours && f.pos == b.last && f.idHash == b.lastHash {
			l.unlike(now, "a batch was acknowledged at offset %d, below the last one at %d, and is there", r.from, l.sequence.last)
		}
	default:
		l.placed(r, f)
	}
}

// placed goes on behind what a reading has found. The next batch is one row: if
// somebody else still writes, that is the most that is written twice.
func (l *lane) placed(r reading, f *found) {
	switch r.purpose {
	case between:
		l.p.metrics.duplicates.Add(float64(f.copies))
		l.probing = f.ours // The one who wrote may be about to write again.
	case glance:
		l.sequence.last, l.known = f.end-1, true
	default:
		l.sequence.last, l.known, l.owes = f.end-1, true, false
		l.probing = true
	}
	if f.ours && f.pos.Compare(l.settled) > 0 && f.pos.Compare(l.buried) > 0 {
		l.expect(f.pos, f.idHash, r.purpose)
	}
}

// expect makes a row that is in the partition the lane's anchor, if it is the highest
// one and the server will send it again.
func (l *lane) expect(pos position.Position, idHash uint64, found purpose) {
	s, a := l.p.session, l.anchor
	switch {
	case pos.IsZero(), pos.Commit < s.Start, a != nil && pos.Compare(a.pos) <= 0:
		return
	case pos.Commit >= s.WALEnd && (found != between && found != search || !l.has(pos)):
		l.unlike(time.Now(), "it holds the position %s, but the server's log ended at %s when the slot was acquired", pos, s.WALEnd)
		return
	}
	next := &anchor{pos: pos, idHash: idHash, found: found}
	if a != nil {
		next.held, next.rows = a.held, a.rows
	}
	l.anchor = next
	l.p.await(pos.Commit)
	l.topic.postpone()
}

// has reports whether the queue reaches up to pos. Of what commits past the horizon
// nobody but this process, in a batch that it has given up, can have published any.
func (l *lane) has(pos position.Position) bool {
	n := l.queue.len()
	return n > 0 && l.queue.at(n-1).pos.Compare(pos) >= 0
}

// unreadable goes on without a reading that the broker refuses: everything that
// might be there is published again. Only a batch that is undecided waits.
func (l *lane) unreadable(r reading, err error, now time.Time) {
	l.todo, l.readSince = reading{}, time.Time{}
	l.owes = false
	if !l.topic.unreadable {
		l.topic.unreadable = true
		l.p.log.Warn("partitions cannot be read: what was published and not confirmed before a restart is published again",
			slog.String("topic", l.topic.name), slog.String("reason", err.Error()))
	}
	switch r.purpose {
	case search:
		l.retryAt = now.Add(haltPause)
		l.halt(l.batch, outcome{err: fmt.Errorf("the broker cannot tell what became of a batch, and its partition cannot be read: %w", err)}, now)
		return
	case repeated:
		if !l.past(l.batch) {
			l.release()
		}
	default:
	}
	l.recovered(now)
}

// settles reports whether a row at the head of the queue needs no batch: it was
// settled before, is passed over because of the anchor, or is a dead letter, which may be
// in the partition all the same, and be the anchor's own row.
func (l *lane) settles(r *row) bool {
	if r.pos.Compare(l.settled) <= 0 {
		return true
	}
	a := l.anchor
	if a == nil || l.lost {
		return r.dead && !l.lost
	}
	switch c := r.pos.Compare(a.pos); {
	case c > 0:
		l.unproved("the server sent the row at %s first", r.pos)
		return false
	case c == 0 && r.idHash != a.idHash:
		l.unproved("the server's row there is another one")
		return false
	case c == 0:
		l.proved(a)
	case r.dead:
	case a.held == 0:
		a.held = r.seq
		fallthrough
	default:
		a.rows++
	}
	return true
}

// proved ends the anchor, whose own row has come by: the rows up to it are settled.
func (l *lane) proved(a *anchor) {
	if a.found == opening {
		l.p.metrics.resumed.Inc()
	}
	if a.found != nothing {
		l.p.metrics.skipped.Add(float64(a.rows + 1))
	}
	l.settled, l.settledHash, l.anchor = a.pos, a.idHash, nil
}

func (l *lane) unproved(format string, args ...any) {
	l.unlike(time.Now(), "it holds the position %s of this history, but "+format, append([]any{l.anchor.pos}, args...)...)
}

// unlike gives up the history: the partition is not like what this process, or this
// server's log, has made.
func (l *lane) unlike(now time.Time, format string, args ...any) {
	l.doubt = &HistoryError{l.topic.name, l.partition, fmt.Sprintf(format, args...)}
	l.lose(l.doubt, now)
}

// lose stops the lane until the session has ended, and has it end. Nothing of the
// lane is settled.
func (l *lane) lose(err error, now time.Time) {
	l.lost = true
	l.trouble = trouble{since: now, attempts: 1, halted: true, reason: err.Error()} // Said by the one who ends the session.
	l.p.ask(err)
}

// await has the lanes told when the stream has passed a commit.
func (p *Publisher) await(commit lsn) {
	p.awaited.Store(min(p.awaited.Load(), uint64(commit)))
}

// Passed tells that the stream has passed every transaction whose commit LSN is
// below lsn: their rows have been handed over. It is cheap enough for every commit.
func (p *Publisher) Passed(lsn lsn) {
	p.passed.Store(uint64(lsn))
	if uint64(lsn) <= p.awaited.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	lowest := uint64(math.MaxUint64)
	for _, t := range p.topics {
		for _, l := range t.lanes {
			switch a := l.anchor; {
			case a == nil:
			case a.pos.Commit < lsn:
				l.signal()
			default:
				lowest = min(lowest, uint64(a.pos.Commit))
			}
		}
	}
	p.awaited.Store(lowest)
}

// missed gives up the history when the stream has passed the anchor without it.
func (l *lane) missed() {
	if a := l.anchor; a != nil && !l.lost && l.queue.len() == 0 && l.p.passed.Load() > uint64(a.pos.Commit) {
		l.unproved("the server has sent everything up to %s without it", lsn(l.p.passed.Load()))
	}
}
