package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// lookEvery is how often the partition counts of topics are looked at.
const lookEvery = time.Second

type lsn = pglogrepl.LSN

// topic is the lanes of one topic, or the rows that wait for it to have any. It is
// guarded by the publisher's mutex.
type topic struct {
	p          *Publisher
	name       string
	partitions int // the count in use, 0 while unknown
	lanes      []*lane
	// queue holds rows that no lane can take yet: the topic is not known, does not
	// exist, or is about to change its partition count. It counts as a lane.
	queue queue
	// grown is the higher partition count that is used once all lanes are empty.
	grown int
	// smaller counts the looks in a row that found fewer partitions than in use.
	smaller int
	// gone is when the cluster first answered that the topic does not exist, zero once it
	// is there, or may be.
	gone time.Time
	// lacked is the last row of the session that had been handed over when the brokers
	// were asked, who did not know the topic. For later ones it may be there.
	lacked uint64
	// refusing means that somebody is asked to take the first row that waits: it is not
	// handed over meanwhile. refuseAt is when to ask again after refusal, the last error.
	refusing bool
	refuseAt time.Time
	refusal  string
	buried   position.Position // see lane
	// absent counts the looks that did not find a topic which was there. One may be the
	// answer of a broker that has just started; after two the topic that is found then
	// is another one, remade.
	absent int
	remade bool
	// givenUp means that lanes were given up in this session: rows wait for the next
	// one. lost is the lowest sequence of the rows that went with them, which holds
	// the watermark until then.
	givenUp bool
	lost    uint64

	weighed    bool   // its settings have been looked at
	unreadable bool   // its partitions may not be read, and that has been said
	problem    string // why the topic is not as it should be
	answer     error  // of the last look, nil when it found the topic
	missing    bool   // the cluster has answered that it does not exist
	since      time.Time
	logged     time.Time
}

// topic returns the topic, adding it when it is new.
func (p *Publisher) topic(name string) *topic {
	t := p.topics[name]
	if t == nil {
		t = &topic{p: p, name: name}
		p.topics[name] = t
		notify(p.kick)
	}
	return t
}

// place returns the lane and queue for a row, or a nil lane and the queue of rows
// that wait. Rows wait behind rows that wait.
func (t *topic) place(hash uint32) (*lane, *queue) {
	if t.partitions == 0 || t.grown > 0 {
		return nil, &t.queue
	}
	l := t.lanes[partitionOf(hash, t.partitions)]
	return l, &l.queue
}

// stamp is the position header's value for a row placed now.
func (t *topic) stamp(pos position.Position, idHash uint64) position.Stamp {
	s := t.p.session
	return position.Stamp{
		History: s.History, Timeline: s.Timeline, Fingerprint: s.Fingerprint,
		Partitions: uint32(t.partitions), Position: pos, IDHash: idHash,
	}
}

// looked acts on what a look at the metadata has found.
func (t *topic) looked(partitions int, err error, now time.Time) {
	missing := errors.Is(err, broker.ErrUnknownTopic)
	if missing && t.partitions > 0 {
		t.absent++
	}
	t.vanished(missing, err, now)
	if err != nil {
		t.trouble(err.Error(), missing, now)
		t.answer = err
		t.turnAway(now)
		return
	}
	t.remade = t.remade || t.absent >= 2
	t.absent = 0
	t.mourn()
	switch {
	case partitions < t.partitions:
		t.smaller++
		t.trouble(fmt.Sprintf("it has %d partitions, fewer than the %d in use", partitions, t.partitions), false, now)
		if t.smaller >= 2 {
			t.giveUp(partitions)
		}
		return
	case partitions > t.partitions && partitions != t.grown && !t.anchored():
		if t.partitions > 0 {
			t.p.log.Info("topic has more partitions: using them once its lanes are empty",
				slog.String("topic", t.name), slog.Int("partitions", partitions), slog.Int("before", t.partitions))
		}
		t.grown = partitions
	}
	t.smaller = 0
	t.healthy(now)
	t.regroup()
}

// mourn has the session end when the topic was deleted and made again: what was
// acknowledged on the one before is gone.
func (t *topic) mourn() {
	if !t.remade || t.p.session == nil {
		return
	}
	t.remade = false
	for _, l := range t.lanes {
		l.unlike(time.Now(), "the topic was deleted and made again")
	}
}

// regroup takes a new partition count into use once all lanes are empty: every row
// read so far is settled. What a lane has settled says nothing about keys that another
// one has held, so it is forgotten.
func (t *topic) regroup() {
	if t.grown == 0 || t.givenUp || t.refusing {
		return
	}
	for _, l := range t.lanes {
		if !l.idle() {
			return
		}
	}
	t.partitions, t.grown = t.grown, 0
	for len(t.lanes) < t.partitions {
		t.lanes = append(t.lanes, newLane(t, len(t.lanes)))
	}
	for _, l := range t.lanes {
		l.settled, l.known, l.todo = position.Position{}, false, reading{purpose: opening}
	}
	t.handOver()
}

// anchored reports that a lane waits for its anchor's row, which the present
// partition count brings to it.
func (t *topic) anchored() bool {
	return slices.ContainsFunc(t.lanes, func(l *lane) bool { return l.anchor != nil })
}

// postpone has rows that wait for a higher partition count go to their lanes by the
// present one, since one of these waits for its anchor's row. The next look finds the
// higher count again.
func (t *topic) postpone() {
	if t.grown > 0 {
		t.grown = 0
		t.handOver()
	}
}

// handOver gives the rows that have waited to their lanes.
func (t *topic) handOver() {
	for i := range t.queue.len() {
		r := t.queue.at(i)
		if !r.dead {
			t.stamp(r.pos, r.idHash).AppendText(r.body[r.stampAt:r.stampAt])
		}
		t.p.budget.move(&t.queue, &t.lanes[partitionOf(r.keyHash, t.partitions)].queue, *r)
	}
	t.queue.pop(t.queue.len())
	t.p.freed()
	t.wake()
}

func (t *topic) wake() {
	for _, l := range t.lanes {
		l.signal()
	}
}

// giveUp ends the topic's lanes, since their partitions may be gone, and asks for a
// new session: the rows come again from the confirmed position.
func (t *topic) giveUp(partitions int) {
	t.p.log.Warn("topic has fewer partitions: giving up its lanes and reading again from the confirmed position",
		slog.String("topic", t.name), slog.Int("partitions", partitions), slog.Int("before", t.partitions))
	t.lost = t.oldest()
	for _, l := range t.lanes {
		l.giveUp()
	}
	t.lanes, t.partitions, t.grown, t.smaller = nil, 0, 0, 0
	t.dropWaiting()
	if t.p.session == nil {
		return
	}
	t.givenUp = true
	t.p.ask(fmt.Errorf("topic %s has fewer partitions than before", t.name))
}

func (t *topic) dropWaiting() {
	t.p.rows -= t.queue.len()
	t.queue.release(&t.p.budget, t.queue.len())
	t.p.freed()
}

// oldest is the lowest unsettled sequence of the session, 0 if there is none.
func (t *topic) oldest() uint64 {
	oldest := t.lost
	lower := func(seq uint64) {
		if seq != 0 && (oldest == 0 || seq < oldest) {
			oldest = seq
		}
	}
	lower(t.queue.oldest())
	for _, l := range t.lanes {
		lower(l.oldest())
	}
	return oldest
}

func (t *topic) end() {
	t.dropWaiting()
	t.givenUp, t.lost, t.lacked, t.buried = false, 0, 0, position.Position{}
	t.refuseAt, t.refusal = time.Time{}, ""
	for _, l := range t.lanes {
		l.end()
	}
	t.regroup()
}

func (t *topic) begin(same bool) {
	for _, l := range t.lanes {
		l.begin(same)
	}
	if t.anchored() {
		t.postpone()
	}
	if !same { // All that is not confirmed is published again as it is.
		t.absent, t.remade = 0, false
	}
	t.mourn()
}

// trouble notes why the topic is not as it should be, and says it once it has
// rows that wait.
func (t *topic) trouble(problem string, missing bool, now time.Time) {
	if t.problem == "" {
		t.since = now
	}
	t.problem, t.missing = problem, missing
	if now.Sub(t.logged) < remindEvery || t.queue.len() == 0 {
		return
	}
	// Only a topic that somebody else has to create is not there in a moment.
	soon := !missing || t.p.cfg.CreateTopics != nil
	if t.logged.IsZero() && soon && now.Sub(t.since) < patience {
		return
	}
	t.logged = now
	t.p.log.Warn("rows wait for their topic", slog.String("topic", t.name),
		slog.String("reason", problem), slog.Int("rows", t.queue.len()))
}

// explain has the look for the topic say why the client does not find it. To withdraw
// a permission hides the topic, and where no broker answers there is none to be found.
func (t *topic) explain(o outcome) outcome {
	if o.reason != noTopic || t.answer == nil || errors.Is(t.answer, broker.ErrUnknownTopic) {
		return o
	}
	code := broker.Code(t.answer)
	if code == 0 {
		return outcome{
			rule: rule{action: retry, decided: o.decided}, reason: broker.Reason(t.answer), err: t.answer, unanswered: t.answer,
		}
	}
	rule := ruleFor(code)
	rule.decided = o.decided
	return outcome{rule: rule, reason: codeName(code), err: t.answer}
}

func (t *topic) healthy(now time.Time) {
	if !t.logged.IsZero() {
		t.p.log.Info("topic is there", slog.String("topic", t.name), slog.Duration("after", now.Sub(t.since)))
	}
	t.problem, t.missing, t.since, t.logged = "", false, time.Time{}, time.Time{}
	t.answer = nil
}

// manageTopics looks at all topics every second, and at once when one is new.
func (p *Publisher) manageTopics(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		for _, name := range p.topicNames() {
			p.look(ctx, name)
		}
		p.remind(time.Now())
		select {
		case <-tick.C:
		case <-p.kick:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Publisher) topicNames() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make([]string, 0, len(p.topics))
	for name := range p.topics {
		names = append(names, name)
	}
	return names
}

// look reads a topic's partition count, and creates the topic if it is missing and
// that is configured.
func (p *Publisher) look(ctx context.Context, name string) {
	partitions, err := p.broker.Partitions(ctx, name)
	if errors.Is(err, broker.ErrUnknownTopic) && p.cfg.CreateTopics != nil {
		if err = p.broker.CreateTopic(ctx, name, *p.cfg.CreateTopics); err == nil {
			partitions, err = p.broker.Partitions(ctx, name)
		}
	}
	if errors.Is(err, broker.ErrUnknownTopic) {
		partitions, err = p.makeSure(ctx, name, err)
	}
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	weigh := false
	if t := p.topics[name]; t != nil {
		t.looked(partitions, err, time.Now())
		weigh = err == nil && !t.weighed
	}
	p.mu.Unlock()
	if weigh {
		p.weigh(ctx, name)
	}
}

// weigh warns, once per topic, when one replica of three may acknowledge alone: what
// it acknowledges is confirmed to the server, and gone if that one is lost. A user
// who may not read the settings is left alone.
func (p *Publisher) weigh(ctx context.Context, name string) {
	s, err := p.broker.TopicSettings(ctx, name)
	if err != nil && broker.Code(err) == 0 {
		return // No answer: asked again at the next look.
	}
	if err == nil && s.ReplicationFactor >= 3 && s.MinInsyncReplicas == 1 {
		p.log.Warn("one replica alone may acknowledge: set min.insync.replicas of the topic to 2",
			slog.String("topic", name), slog.Int("replication_factor", s.ReplicationFactor),
			slog.Int("min_insync_replicas", s.MinInsyncReplicas))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.topics[name]; t != nil {
		t.weighed = true
	}
}

func (p *Publisher) remind(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.topics {
		for _, l := range t.lanes {
			l.remind(now)
		}
	}
}
