package publish

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// verdict is a refusal for good of rows at the head of a lane's queue, up to the
// sequence last. The zero value is none.
type verdict struct {
	reason string
	err    error
	at     time.Time
	last   uint64
}

// final reports that the action ends in a refusal of the rows.
func (p *Publisher) final(a action) bool {
	return a == split || a == refuse && p.cfg.DeadLetter
}

// note has the rows of a batch remember an attempt that failed.
func (l *lane) note(b *batch, o outcome, now time.Time) {
	if b.undecided {
		l.mark(b)
	}
	if o.free || o.action != retry && o.action != find {
		return
	}
	l.failure, l.failedAt = o.err, now
	for i := range b.n {
		r := l.queue.at(i)
		r.attempts++
		r.again = false
		if r.failed == 0 {
			r.failed = now.UnixNano()
		}
	}
}

// mark has the rows of a batch remember that they may have been appended, whatever is
// found out later: a request may arrive after the partition was read.
func (l *lane) mark(b *batch) {
	for i := range b.n {
		l.queue.at(i).doubtful = true
	}
}

// spent reports that a row is out of attempts.
func (p *Publisher) spent(r *row) bool {
	limit := p.cfg.MaxAttempts
	return limit > 0 && int(r.attempts) >= limit && !r.again
}

// exhaust ends a batch whose first row is out of attempts: a batch that may have been
// appended once its partition is read.
func (l *lane) exhaust(b *batch, o outcome, now time.Time) {
	switch {
	case !l.p.spent(l.queue.at(0)):
	case b.undecided:
		l.search(b, o, now)
	default:
		l.release()
	}
}

// condemn has the rows of a decided batch, which the broker has refused for good, given
// to Refused one by one.
func (l *lane) condemn(b *batch, o outcome, res broker.Produced, now time.Time) {
	err := o.err
	if len(res.RecordErrors) == 1 && res.RecordErrors[0].Message != "" {
		err = fmt.Errorf("%w: %s", kafka.Error(res.Code), res.RecordErrors[0].Message)
	}
	l.verdict = verdict{reason: refusalReason(res.Code), err: err, at: now, last: l.queue.at(b.n - 1).seq}
	l.release()
}

// refusalReason is the label for a code that refuses a row for good.
func refusalReason(code int) string {
	switch kafka.Error(code) {
	case kafka.InvalidTopic:
		return ReasonInvalidTopic
	case kafka.InvalidTimestamp:
		return ReasonInvalidTimestamp
	case kafka.InvalidRecord:
		return ReasonInvalidRecord
	}
	return ReasonTooLarge
}

// doomed returns the first row of the queue if it is not to be published. There is no
// batch, and the row is beyond whatever is known to be in the partition.
func (l *lane) doomed(unknown bool, now time.Time) *refused {
	p, r := l.p, l.queue.at(0)
	if l.verdict.last < r.seq {
		l.verdict = verdict{}
	}
	var f *refused
	switch v := l.verdict; {
	case v.err != nil:
		f = r.refuse(p.session, l.topic.name, v.reason, v.err)
		f.Attempts++
		f.failedFrom(r, v.at)
	case unknown:
		f = l.topic.refuse(r, now)
	case p.spent(r):
		f = r.refuse(p.session, l.topic.name, ReasonAttempts, l.failure)
		f.failedFrom(r, l.failedAt)
	default:
		return nil
	}
	f.MayBePublished = f.MayBePublished || r.pos.Compare(l.suspect) <= 0
	l.refusing = now
	return f
}

// refuse has the first row of the queue become a dead letter, on the lane's goroutine.
func (l *lane) refuse(ctx context.Context, f *refused) {
	p := l.p
	err := p.give(ctx, f)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	l.refusing = time.Time{}
	if l.gone || l.lost || p.session != f.session || l.queue.oldest() != f.Seq {
		return // The row is not this lane's any more, or comes again.
	}
	if err != nil {
		l.verdict = verdict{}
		l.queue.at(0).again = true
		l.retryAt = now.Add(haltPause)
		l.troubled(true, f.notTaken(err), now)
		return
	}
	if f.Reason != ReasonAttempts || l.trouble.halted {
		l.recovered(now) // Else the broker is still the trouble.
	}
	l.buried = f.Position
	l.drop(1)
	if l.queue.len() == 0 {
		l.trouble = trouble{} // Nobody would find out that it is over.
	}
	notify(p.settled)
	l.topic.regroup()
}

// notTaken says that a row is neither published nor a dead letter.
func (f *refused) notTaken(err error) string {
	return fmt.Sprintf("message id %.64q at position %s cannot be published (%v), nor become a dead letter: %v", f.ID, f.Position, f.Err, err)
}

// give has Refused take a row, unless the session is over by now. The call's context is
// the session's, so that it has ended before the next session begins.
func (p *Publisher) give(run context.Context, f *refused) error {
	ctx, cancel := context.WithCancel(f.session.over)
	defer cancel()
	defer context.AfterFunc(run, cancel)()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.cfg.Refused(ctx, &f.Refusal)
}
