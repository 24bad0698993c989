package publish

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// vanished notes since when the topic has not existed. Only the cluster's answer says
// that it does, or may; no answer says nothing.
func (t *topic) vanished(missing bool, err error, now time.Time) {
	switch {
	case missing:
		if t.gone.IsZero() {
			t.gone = now
		}
	case err == nil || broker.Code(err) != 0:
		t.gone = time.Time{}
	}
}

// unknown reports that the topic has been missing for so long that a row is refused.
func (t *topic) unknown(seq uint64, now time.Time) bool {
	c := &t.p.cfg
	return c.DeadLetterUnknownTopics && t.missing && now.Sub(t.gone) >= c.UnknownTopicGrace && seq <= t.lacked
}

// doubts reports that a row which no broker has been asked about is to be refused: what
// the look has found missing may have been made a moment ago.
func (t *topic) doubts(now time.Time) bool {
	c := &t.p.cfg
	if !c.DeadLetterUnknownTopics || t.gone.IsZero() || now.Sub(t.gone) < c.UnknownTopicGrace {
		return false
	}
	newest := t.queue.newest()
	for _, l := range t.lanes {
		newest = max(newest, l.queue.newest())
	}
	return newest > t.lacked
}

// makeSure asks the brokers for a topic that the look has found missing, if rows are to be
// refused for it. Rows that come while they answer wait for the next look.
func (p *Publisher) makeSure(ctx context.Context, name string, answer error) (partitions int, err error) {
	p.mu.Lock()
	session, latest := p.session, p.latest
	t := p.topics[name]
	doubts := t != nil && t.doubts(time.Now())
	p.mu.Unlock()
	if !doubts {
		return 0, answer
	}
	partitions, err = p.broker.PartitionsNow(ctx, name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t = p.topics[name]; t != nil && p.session == session && errors.Is(err, broker.ErrUnknownTopic) {
		t.lacked = latest
	}
	return partitions, err
}

// orphaned reports that the topic of the lane's first row is unknown.
func (l *lane) orphaned(now time.Time) bool {
	if l.queue.len() == 0 || !l.p.alive() {
		return false
	}
	seq := l.queue.oldest()
	if b := l.batch; b != nil && b.session != l.p.session {
		seq = 0 // It was numbered in a past session.
	}
	return l.topic.unknown(seq, now)
}

// turnAway has rows of a topic that is missing refused, those that wait and those in
// lanes. Rows that are settled already leave the queue after a second look.
func (t *topic) turnAway(now time.Time) {
	if !t.missing {
		return
	}
	if now.Sub(t.gone) >= lookEvery {
		t.bury()
	}
	for _, l := range t.lanes {
		if l.orphaned(now) {
			l.signal()
		}
	}
	if t.p.start != nil && !t.refusing && t.due(now) {
		t.refusing = true
		t.p.start(t.refuseWaiting)
	}
}

// bury drops the rows at the head of the queue that are settled. There is no partition
// that could hold one of them as an anchor's row.
func (t *topic) bury() {
	for t.partitions == 0 && t.queue.len() > 0 && t.queue.at(0).dead {
		t.buried = t.queue.at(0).pos
		t.leave()
	}
}

// leave drops the first row of the queue.
func (t *topic) leave() {
	t.queue.release(&t.p.budget, 1)
	t.p.rows--
	t.p.freed()
	notify(t.p.settled)
}

// due reports whether the first row that waits is to be refused now.
func (t *topic) due(now time.Time) bool {
	return t.queue.len() > 0 && t.unknown(t.queue.oldest(), now) && t.partitions == 0 && !t.givenUp &&
		!now.Before(t.refuseAt) && t.p.alive()
}

// refuse makes a row of the topic, which is missing, one to be refused.
func (t *topic) refuse(r *row, now time.Time) *refused {
	f := r.refuse(t.p.session, t.name, ReasonUnknownTopic, t.answer)
	f.failedFrom(r, now)
	if r.failed == 0 {
		f.First = later(t.gone, f.CommitTime)
	}
	return f
}

// refuseWaiting has the rows that wait become dead letters, in order, until the topic
// is there. It has a goroutine of its own meanwhile.
func (t *topic) refuseWaiting(ctx context.Context) {
	p := t.p
	p.mu.Lock()
	defer p.mu.Unlock()
	defer t.regroup()
	defer func() { t.refusing = false }()
	for ctx.Err() == nil {
		t.bury()
		if !t.due(time.Now()) {
			return
		}
		f := t.refuse(t.queue.at(0), time.Now())
		p.mu.Unlock()
		err := p.give(ctx, f)
		p.mu.Lock()
		switch {
		case p.session != f.session || t.queue.oldest() != f.Seq:
		case err != nil:
			t.refuseAt, t.refusal = time.Now().Add(haltPause), f.notTaken(err)
		default:
			t.buried, t.refusal = f.Position, ""
			t.leave()
		}
	}
}

// surrender gives up the batch of a lane whose topic is missing for good: there is no
// partition to find it in. It reports false when there is no epoch to go on with.
func (l *lane) surrender(now time.Time) bool {
	b := l.batch
	if b == nil {
		return true
	}
	if b.undecided && !l.raise(b, now) {
		return false
	}
	if l.past(b) {
		return true
	}
	if b.undecided { // Should the topic come back, what is left of it is looked for.
		l.todo, l.owes = reading{purpose: opening}, true
	}
	l.release()
	return true
}
