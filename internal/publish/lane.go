package publish

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/crash"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

const (
	// haltPause is how often a halted lane tries again.
	haltPause = 30 * time.Second
	// alivePoll is how often a lane with rows asks whether the session is alive.
	alivePoll = 50 * time.Millisecond
)

// lane publishes the rows of one partition: in order, one batch in flight, without
// a timer. What has gathered while a request was out is the next batch.
//
// A row's way: Publish pushes it to the queue; take makes the first rows a batch;
// send writes it; answer judges what came back and settles the rows, or has the
// same bytes sent again, or fewer rows. Rows stay in the queue until they are
// settled, so giving up a batch that is known not to be appended costs nothing.
//
// Where the lane cannot know what its partition holds it reads it before it writes:
// when it opens, and when an answer leaves the fate of a batch open. See tail.go.
//
// Every lane sends a request of its own. A broker answers a request when its
// slowest partition does, so a lane in trouble can hold up no other.
type lane struct {
	p         *Publisher
	topic     *topic
	partition int
	wake      chan struct{} // cap 1: something has changed

	// Everything below is guarded by the publisher's mutex, except that the
	// contents of a batch in flight belong to the lane's goroutine.

	queue    queue
	sequence *sequence
	// settled is the lane's last settled row, never one that is merely queued, and
	// settledHash the hash of its message id. In the next session it is an anchor.
	settled     position.Position
	settledHash uint64
	batch       *batch // the batch being sent, nil between batches
	// todo is what has to be read before the next batch; readSince is since when that
	// has been due.
	todo      reading
	readSince time.Time
	// anchor is the highest row known to be in the partition, if the server is to send
	// it again and has not yet.
	anchor *anchor
	// known means that of the lane's rows no other than the settled ones are in the
	// partition up to the last offset of its sequence.
	known bool
	// owes means that a batch was given up whose rows will come again: the partition
	// is read whatever the horizon.
	owes bool
	// probing means that the next batch is one row, whose offset tells whether
	// somebody has written since the reading.
	probing bool
	lost    bool  // the session has to end
	doubt   error // why the history was given up; it lasts until there is another
	// maxBytes bounds a batch once the broker has refused a larger one; maxRows,
	// while the broker refuses some row among many. 0 is no limit.
	maxBytes, maxRows int
	// verdict is a refusal by the broker, of rows at the head of the queue.
	verdict verdict
	// failure is the last attempt that failed for a reason that passes, at failedAt.
	failure  error
	failedAt time.Time
	// buried is the highest row of the session that became a dead letter. Up to it
	// nothing that is found in the partition comes by again.
	buried position.Position
	// suspect is the highest row of batches of past sessions that were given up: up to
	// it rows may have been published.
	suspect position.Position
	// refusing is since when somebody has been asked to take the first row.
	refusing time.Time
	trouble  trouble
	backoff  backoff
	retryAt  time.Time
	gone     bool // the topic has been given up
	held     bool // Flush wakes it
}

func newLane(t *topic, partition int) *lane {
	l := &lane{
		p: t.p, topic: t, partition: partition, buried: t.buried,
		wake:     make(chan struct{}, 1),
		sequence: t.p.sequence(partitionName{t.name, partition}),
		backoff:  backoff{initial: t.p.cfg.RetryInitial, max: t.p.cfg.RetryMax},
		todo:     reading{purpose: opening},
	}
	if t.p.start != nil {
		t.p.start(l.run)
	}
	return l
}

func (l *lane) signal() { notify(l.wake) }

// hold puts off the signal until Flush.
func (l *lane) hold() {
	if !l.held {
		l.held = true
		l.p.held = append(l.p.held, l)
	}
}

// run is the lane's goroutine.
func (l *lane) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		do, ok := l.next(time.Now())
		switch {
		case !ok:
			return
		case do.batch != nil:
			l.send(ctx, do.batch)
			continue
		case do.read.purpose != nothing:
			l.read(ctx, do.read)
			continue
		case do.refuse != nil:
			l.refuse(ctx, do.refuse)
			continue
		case do.wait > 0:
			timer.Reset(do.wait)
		}
		select {
		case <-l.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// task is what a lane does next: send a batch, read, have a row refused, or wait, 0
// until woken.
type task struct {
	batch  *batch
	read   reading
	refuse *refused
	wait   time.Duration
}

// next returns what to do now. It returns false when the lane is to end.
func (l *lane) next(now time.Time) (do task, ok bool) {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.gone {
		return task{}, false
	}
	if l.batch == nil {
		l.skip()
		if l.queue.len() == 0 && l.todo.purpose != between {
			return task{}, true
		}
	}
	if l.lost {
		return task{}, true
	}
	if d := l.retryAt.Sub(now); d > 0 {
		return task{wait: d}, true
	}
	if l.batch == nil || !l.batch.undecided {
		// Nothing of it has been written. Without a session there is none of these.
		if !p.alive() {
			return task{wait: alivePoll}, true
		}
	}
	unknown := l.orphaned(now)
	if unknown && !l.surrender(now) {
		return task{wait: haltPause}, true
	}
	if !unknown && l.due() {
		return l.reading(now), true
	}
	if l.batch == nil {
		if l.skip(); l.lost || l.queue.len() == 0 {
			return task{wait: lookEvery}, true
		}
		if f := l.doomed(unknown, now); f != nil {
			return task{refuse: f}, true
		}
		if !l.take() {
			return task{}, true
		}
	}
	l.batch.inFlight = true
	return task{batch: l.batch}, true
}

// alive reports whether a session is running and believed to hold the slot.
func (p *Publisher) alive() bool { return p.session != nil && p.session.Alive() }

// skip drops the rows at the head of the queue that need no batch.
func (l *lane) skip() {
	n := 0
	for ; n < l.queue.len() && l.settles(l.queue.at(n)); n++ {
		if r := l.queue.at(n); r.dead {
			l.buried = r.pos
		}
	}
	if n > 0 {
		l.drop(n)
		notify(l.p.settled)
	}
	l.missed()
}

// take makes the first rows of the queue the lane's batch. It reports false while
// there is no producer id to send it with.
func (l *lane) take() bool {
	p := l.p
	producer, epoch, first, ok := p.number(l.sequence)
	if !ok {
		return false
	}
	b, _ := p.batches.Get().(*batch)
	if b == nil {
		b = new(batch)
	}
	*b = batch{
		session: p.session, prefixes: b.prefixes, pieces: b.pieces, payload: b.payload,
		producer: producer, epoch: epoch, sequence: first, probe: l.probing,
	}
	limit := p.cfg.MaxMessageBytes
	if l.maxBytes > 0 {
		limit = min(limit, l.maxBytes)
	}
	rows := l.maxRows
	if l.probing {
		rows = 1
	}
	b.collect(&l.queue, limit, rows)
	l.batch = b
	return true
}

// send makes one attempt to publish the batch.
func (l *lane) send(ctx context.Context, b *batch) {
	p := l.p
	if !b.sealed {
		if err := b.seal(p.compression); err != nil {
			l.answer(b, outcome{rule: rule{action: halt, decided: true}, reason: "encode", err: err}, broker.Produced{})
			return
		}
	}
	p.mu.Lock()
	if l.gone { // Given up meanwhile, and the batch with it.
		p.mu.Unlock()
		return
	}
	l.charge(b)
	// To seal may have taken a while: this is the last moment to find that the slot
	// is no longer ours.
	if !b.undecided && !(p.session == b.session && p.alive()) {
		b.inFlight = false
		if p.session != b.session {
			l.abandon()
		}
		p.mu.Unlock()
		return
	}
	b.attempts++
	b.started = time.Now()
	p.mu.Unlock()
	res, err := p.broker.Produce(ctx, l.topic.name, l.partition, b)
	if ctx.Err() != nil {
		return
	}
	o := judge(res, err)
	if o.action == settle {
		crash.At(crash.Produced)
	}
	if o.refresh {
		p.broker.Refresh()
	}
	l.answer(b, o, res)
}

// answer acts on the outcome of an attempt.
func (l *lane) answer(b *batch, o outcome, res broker.Produced) {
	p := l.p
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	b.inFlight = false
	if l.gone {
		return
	}
	o = l.topic.explain(o)
	if !o.unasked {
		p.health.observe(o.unanswered, now)
	}
	if o.action == settle {
		if l.sequence.last >= 0 && res.BaseOffset <= l.sequence.last {
			l.swallowed(b, res.BaseOffset, now)
			return
		}
		l.acknowledge(b, res.BaseOffset, now)
		return
	}
	p.metrics.failure(l.topic.name, o.reason)
	b.undecided = b.undecided || !o.decided
	l.note(b, o, now)
	if o.unanswered != nil && !o.decided {
		l.late(b)
	}
	switch {
	case b.session != p.session && !b.undecided:
		l.abandon()
		return
	case o.action == find || p.final(o.action) && b.undecided:
		l.search(b, o, now)
	case o.action == depose:
		l.deposed(b, o, now)
	case o.action == split && b.n > 1:
		l.shrink(b, o, res)
		return
	case p.cfg.DeadLetter && p.final(o.action):
		l.condemn(b, o, res, now)
		return
	case o.action != retry:
		l.retryAt = now.Add(haltPause)
		l.halt(b, o, now)
	default:
		l.retryAt = now.Add(l.backoff.next())
		l.failing(o, now)
		l.exhaust(b, o, now)
	}
	p.metrics.retry(o.reason)
}

// acknowledge settles the rows of the batch.
func (l *lane) acknowledge(b *batch, base int64, now time.Time) {
	l.p.metrics.acknowledged(l, b, now)
	l.p.decided.Add(uint64(b.n))
	if !b.raised {
		l.sequence.advance(b.n)
	}
	expected := l.sequence.last + 1
	l.sequence.last = base + int64(b.n) - 1
	if !b.foreign {
		l.arrived(b)
		if b.probe {
			l.follows(b, expected, base)
		}
	}
	n := b.n
	l.release()
	if l.maxRows *= 2; l.maxRows > maxShrunkRows {
		l.maxRows = 0
	}
	l.recovered(now)
	l.drop(n)
	notify(l.p.settled)
	l.topic.regroup()
}

// arrived notes that the rows of a batch are in the partition. Those of a past session
// the server sends again.
func (l *lane) arrived(b *batch) {
	l.known = true
	if s := l.p.session; s != nil && s != b.session {
		l.expect(b.last, b.lastHash, nothing)
		return
	}
	l.settled, l.settledHash = b.last, b.lastHash
}

// follows looks whether the first batch after a reading follows what was read.
func (l *lane) follows(b *batch, expected, base int64) {
	switch {
	case base == expected:
		l.probing = false
	case b.session == l.p.session:
		l.todo = reading{purpose: between, from: expected, to: base}
	default:
		l.known = false
	}
}

// oldest is the sequence of the session's first unsettled row, 0 if there is none.
func (l *lane) oldest() uint64 {
	if a := l.anchor; a != nil && a.held != 0 {
		return a.held
	}
	if b := l.batch; b != nil && b.session != l.p.session {
		return l.queue.seqAt(b.n)
	}
	return l.queue.oldest()
}

// idle reports that the lane holds nothing and has nothing to find out.
func (l *lane) idle() bool {
	return l.batch == nil && l.queue.len() == 0 && l.anchor == nil && l.todo.purpose != between
}

// end drops what belongs to the session that is over: everything but a batch that
// was written, or is just being written.
func (l *lane) end() {
	if l.lost || l.todo.purpose == between {
		l.known = false
	}
	if a := l.anchor; a != nil {
		l.settled, l.settledHash = a.pos, a.idHash // To be proved in the next session.
	}
	switch l.todo.purpose {
	case repeated: // In the next session, before anything else.
	case search:
		l.past(l.batch)
		fallthrough
	default:
		l.todo = reading{}
	}
	l.readSince, l.anchor, l.lost, l.verdict = time.Time{}, nil, false, verdict{}
	keep := 0
	if b := l.batch; b != nil {
		if b.undecided || b.inFlight {
			keep = b.n
		} else {
			l.release()
		}
	}
	l.p.rows -= l.queue.len() - keep
	l.queue.truncate(&l.p.budget, keep)
	if keep == 0 {
		l.trouble = trouble{}
	}
}

// giveUp ends the lane, whose partition may be gone.
func (l *lane) giveUp() {
	if b := l.batch; b != nil {
		if b.inFlight {
			l.late(b)
		}
		// Its numbers must not go to other rows while it may still be appended.
		l.p.raise(l.sequence)
		l.release()
	}
	l.sequence.last = -1
	l.drop(l.queue.len())
	l.gone = true
	l.signal()
}

// begin prepares the lane for a new session: with what it has settled, if that
// means something there, else as new.
func (l *lane) begin(same bool) {
	if l.todo.purpose != repeated {
		l.todo.purpose = opening
	}
	l.probing = false
	l.maxBytes, l.maxRows = 0, 0
	l.buried = position.Position{}
	l.retryAt = time.Time{}
	l.backoff.reset()
	settled, hash := l.settled, l.settledHash
	l.settled, l.settledHash = position.Position{}, 0
	switch {
	case !same:
		l.forget()
	case l.doubt != nil:
		l.lose(l.doubt, time.Now())
	default:
		l.expect(settled, hash, nothing)
	}
	l.signal()
}
