package publish

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// slowAttempt is the age of an attempt from which the broker counts as not
	// answering; a healthy one takes milliseconds.
	slowAttempt = 5 * time.Second
	// failedProbes is how many failures in a row count: in a cluster one may have
	// been the fault of one broker.
	failedProbes = 2
)

// Snapshot is the publisher's state for status and readiness.
type Snapshot struct {
	// Rows and Bytes are queued or in flight; MaxBytes is the budget.
	Rows, Bytes, MaxBytes int
	// Blocked says that the stream is held because the budget, or a lane's share of
	// it, is used up.
	Blocked bool
	// Lanes are the partitions that hold rows or are in trouble, by topic and
	// partition.
	Lanes []LaneState
	// Waiting are the topics whose rows wait, or that are not as they should be.
	Waiting []TopicState
	// Broker is the reachability of the brokers.
	Broker BrokerState
}

// LaneState is the state of one partition's lane.
type LaneState struct {
	Topic     string
	Partition int
	// Queued rows wait behind the InFlight rows of the batch being sent.
	Queued, InFlight int
	// Attempts counts failures in a row, the first of which was at Since.
	Attempts int
	Since    time.Time
	// Reason is the last failure, empty when all is well. Halted means that it will
	// not heal by itself.
	Reason string
	Halted bool
	// RowAttempts counts the failed attempts that count against MaxAttempts (0: no
	// limit) for the first row. The next attempt is at NextAttempt; zero is now.
	RowAttempts, MaxAttempts int
	NextAttempt              time.Time
	// Refusing is how long the lane has waited for a row to become a dead letter.
	Refusing time.Duration
	// AttemptAge is how long the present attempt has been under way.
	AttemptAge time.Duration
	// Reading is how long the lane has waited for its partition to be read, without
	// which it sends nothing.
	Reading time.Duration
	// Skipped rows were found in the partition, which is not proved yet: they hold
	// the position.
	Skipped int
}

// TopicState is the state of a topic that has no lanes, or is about to get others.
type TopicState struct {
	Topic   string
	Rows    int
	Missing bool // the cluster says that it does not exist
	Reason  string
	Since   time.Time
}

// BrokerState is the reachability of the brokers.
type BrokerState struct {
	// LastSuccess is when a broker last answered anything.
	LastSuccess time.Time
	// NoProducer says why Kafka has not given a producer id yet, without which
	// nothing is sent; empty once it has.
	NoProducer string
	// Failures counts failures since then, the first at Since; Reason is the last.
	Failures int
	Since    time.Time
	Reason   string
}

// Snapshot returns the present state.
func (p *Publisher) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Snapshot{
		Rows: p.rows, Bytes: p.budget.used, MaxBytes: p.budget.limit,
		Blocked: p.blocked != nil,
		Broker: BrokerState{
			LastSuccess: p.health.lastSuccess, NoProducer: p.refusal,
			Failures: p.health.failures, Since: p.health.since,
		},
	}
	if p.health.err != nil {
		s.Broker.Reason = p.health.err.Error()
	}
	now := time.Now()
	for _, t := range p.topics {
		if n := t.queue.len(); n > 0 || t.problem != "" {
			s.Waiting = append(s.Waiting, t.state())
		}
		for _, l := range t.lanes {
			if !l.idle() || l.trouble.attempts > 0 || !l.readSince.IsZero() {
				s.Lanes = append(s.Lanes, l.state(now))
			}
		}
	}
	slices.SortFunc(s.Waiting, func(a, b TopicState) int { return strings.Compare(a.Topic, b.Topic) })
	slices.SortFunc(s.Lanes, func(a, b LaneState) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return a.Partition - b.Partition
	})
	return s
}

func (t *topic) state() TopicState {
	s := TopicState{Topic: t.name, Rows: t.queue.len(), Missing: t.missing, Reason: t.problem, Since: t.since}
	if t.refusal != "" {
		s.Reason += "; " + t.refusal
	}
	return s
}

func (l *lane) state(now time.Time) LaneState {
	s := LaneState{
		Topic: l.topic.name, Partition: l.partition, Queued: l.queue.len(),
		Attempts: l.trouble.attempts, Since: l.trouble.since, Reason: l.trouble.reason, Halted: l.trouble.halted,
	}
	if !l.readSince.IsZero() {
		s.Reading = now.Sub(l.readSince)
	}
	if !l.refusing.IsZero() {
		s.Refusing = now.Sub(l.refusing)
	}
	if l.queue.len() > 0 {
		s.RowAttempts, s.MaxAttempts = int(l.queue.at(0).attempts), l.p.cfg.MaxAttempts
	}
	if l.retryAt.After(now) {
		s.NextAttempt = l.retryAt
	}
	if l.anchor != nil {
		s.Skipped = l.anchor.rows
	}
	if b := l.batch; b != nil {
		s.InFlight = b.n
		s.Queued -= b.n
		if b.inFlight && b.attempts > 0 {
			s.AttemptAge = now.Sub(b.started)
		}
	}
	return s
}

// attempt says how far the lane has got with its first row: "attempt 3 of 5, next in 2s".
func (l LaneState) attempt() string {
	var text string
	switch {
	case l.RowAttempts == 0: // It fails for a reason that does not count.
		text = fmt.Sprintf("%d times", l.Attempts)
	case l.MaxAttempts > 0:
		text = fmt.Sprintf("attempt %d of %d", l.RowAttempts, l.MaxAttempts)
	default:
		text = fmt.Sprintf("attempt %d", l.RowAttempts)
	}
	if pause := time.Until(l.NextAttempt); pause > 0 {
		text += fmt.Sprintf(", next in %s", max(pause.Round(time.Second/10), time.Second/10))
	}
	return text
}

// Problems says, in words for an operator, what keeps rows from being published;
// none means ready. A broker that stops answering shows within ten seconds.
func (s Snapshot) Problems() []string {
	var out []string
	for _, l := range s.Lanes {
		switch {
		case l.Halted:
			out = append(out, fmt.Sprintf("%s[%d] is halted: %s", l.Topic, l.Partition, l.Reason))
		case l.AttemptAge >= slowAttempt:
			out = append(out, fmt.Sprintf("%s[%d]: kafka has not answered for %s", l.Topic, l.Partition, l.AttemptAge.Round(time.Second)))
		case l.Attempts >= failedProbes:
			out = append(out, fmt.Sprintf("%s[%d] fails (%s): %s", l.Topic, l.Partition, l.attempt(), l.Reason))
		case l.Refusing >= slowAttempt:
			out = append(out, fmt.Sprintf("%s[%d] has waited for %s for a dead letter to be written", l.Topic, l.Partition, l.Refusing.Round(time.Second)))
		case l.Reading >= slowAttempt:
			out = append(out, fmt.Sprintf("%s[%d] has waited for %s to be read", l.Topic, l.Partition, l.Reading.Round(time.Second)))
		}
	}
	for _, t := range s.Waiting {
		if t.Rows > 0 && t.Reason != "" {
			out = append(out, fmt.Sprintf("%d rows wait for topic %s: %s", t.Rows, t.Topic, t.Reason))
		}
	}
	switch {
	case s.Broker.Failures >= failedProbes:
		out = append(out, "kafka does not answer: "+s.Broker.Reason)
	case s.Broker.NoProducer != "":
		out = append(out, "no producer id: "+s.Broker.NoProducer)
	}
	return out
}
