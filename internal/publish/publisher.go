package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go/compress"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// ErrSessionOver is returned by Publish when no session is running.
var ErrSessionOver = errors.New("no session is running")

// Broker is what the publisher asks of Kafka. *broker.Broker implements it.
type Broker interface {
	// InitProducer returns a new producer id.
	InitProducer(ctx context.Context) (broker.Producer, error)
	// Partitions returns a topic's partition count, from metadata about a second
	// old, or an error that wraps broker.ErrUnknownTopic.
	Partitions(ctx context.Context, topic string) (int, error)
	// PartitionsNow is Partitions by an answer that a broker gives to this call.
	PartitionsNow(ctx context.Context, topic string) (int, error)
	// CreateTopic creates a topic unless it exists.
	CreateTopic(ctx context.Context, name string, spec broker.TopicSpec) error
	// TopicSettings returns a topic's effective settings.
	TopicSettings(ctx context.Context, topic string) (broker.TopicSettings, error)
	// Produce sends a batch and returns the broker's answer. It must return within
	// a bounded time and must not keep the batch's bytes in use after an answer.
	Produce(ctx context.Context, topic string, partition int, batch broker.Batch) (broker.Produced, error)
	// Refresh has the next request read the cluster layout anew, if it was not read
	// just now.
	Refresh()
	// Ping asks a broker for an answer on the wire.
	Ping(ctx context.Context) error
	// Offsets returns the bounds of what a partition holds.
	Offsets(ctx context.Context, topic string, partition int) (broker.Offsets, error)
	// Fetch calls each for the data records of a partition from offset on, about
	// maxBytes and at most to the high watermark, with the value of the record's
	// last header of that name, and returns the next offset to read. A value is
	// valid until each returns.
	Fetch(ctx context.Context, topic string, partition int, offset int64, maxBytes int, header string,
		each func(offset int64, value []byte)) (next int64, err error)
	// InitTransactional returns the producer id of a transactional id with a raised
	// epoch; known is the producer in use, or {-1, -1}.
	InitTransactional(ctx context.Context, transactionalID string, known broker.Producer) (broker.Producer, error)
}

var _ Broker = (*broker.Broker)(nil)

// Session is one pass over the stream: everything between the start of a
// replication connection and its loss.
type Session struct {
	// SystemID, Timeline, History and Fingerprint say what positions of this
	// session are comparable with. While they stay the same from one session to the
	// next, rows that a lane has settled are not published again.
	SystemID    string
	Timeline    uint32
	History     uint64
	Fingerprint uint64
	// Start is the slot's confirmed position when the session began: a transaction
	// that commits before it is not sent again.
	Start pglogrepl.LSN
	// WALEnd is the server's WAL end as read when the slot was acquired: what commits
	// from there on cannot have been published before. A lane that has settled a
	// position beyond it has seen another history and forgets it.
	WALEnd pglogrepl.LSN
	// Alive reports whether the slot is still believed to be ours. It is asked
	// right before a batch is written for the first time, from many goroutines and
	// with a lock held: it must not block and must not call the publisher.
	Alive func() bool
	// Blocked, if not nil, is told when Publish begins and ends waiting for memory.
	// It runs on the goroutine that called Publish.
	Blocked func(bool)
}

// identity is what makes positions of two sessions comparable.
type identity struct {
	systemID             string
	timeline             uint32
	history, fingerprint uint64
}

type session struct {
	Session
	over context.Context // ends with the session
	end  context.CancelFunc
}

func (s *session) identity() identity {
	return identity{s.SystemID, s.Timeline, s.History, s.Fingerprint}
}

// Publisher publishes rows in per-partition order and knows which are settled. See
// the package comment for what lives as long as the process and what is per
// session.
//
// Publish is called by one goroutine; every other method is safe for concurrent
// use.
type Publisher struct {
	cfg         Config
	broker      Broker
	log         *slog.Logger
	metrics     *metrics
	compression compress.Compression
	stampLen    int

	settled chan struct{} // cap 1: something has been settled
	reset   chan error    // cap 1: a new session is needed
	space   chan struct{} // cap 1: memory has become free, for a Publish that waits
	kick    chan struct{} // cap 1: a topic wants to be looked up
	reader  chan struct{} // cap 1: held by the lane that reads

	passed  atomic.Uint64 // the session's stream has passed all commits below it
	awaited atomic.Uint64 // the lowest commit of an anchor that is not proved

	decided atomic.Uint64 // rows acknowledged

	// mu guards everything below, and the lanes and topics. Encoding, compression
	// and requests happen outside it, save for the encoding of a row in Publish.
	mu        sync.Mutex
	budget    budget
	batches   sync.Pool // of *batch that no request can be reading
	session   *session  // nil between sessions
	identity  identity  // of the last session; what lanes' settled positions mean
	topics    map[string]*topic
	sequences map[partitionName]*sequence
	producer  broker.Producer // ID -1 until Kafka has given one
	refusal   string          // why it has not, so far
	fence     fencing         // how it is kept, with a transactional id
	rows      int             // queued and in flight
	latest    uint64          // the last row of the session that was handed over
	held      []*lane         // that Flush wakes
	blocked   *queue          // what Publish waits for
	health    health
	// start runs a lane, or whatever else may block, on a goroutine of Run; nil until then.
	start func(func(context.Context))
}

// New returns a publisher. It starts nothing: Run does. Register may be nil.
func New(cfg Config, b Broker, log *slog.Logger, register prometheus.Registerer) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	compression, err := cfg.compression()
	if err != nil {
		return nil, err
	}
	if cfg.DeadLetter && cfg.Refused == nil {
		return nil, errors.New("nothing takes the rows that are refused")
	}
	cfg = cfg.withDefaults()
	p := &Publisher{
		cfg: cfg, broker: b, log: log,
		compression: compression,
		stampLen:    len(position.Stamp{}.AppendText(nil)),
		settled:     make(chan struct{}, 1),
		reset:       make(chan error, 1),
		space:       make(chan struct{}, 1),
		kick:        make(chan struct{}, 1),
		reader:      make(chan struct{}, 1),
		budget:      budget{limit: cfg.InFlightBytes, share: cfg.InFlightBytes / 2},
		topics:      make(map[string]*topic),
		sequences:   make(map[partitionName]*sequence),
		producer:    broker.Producer{ID: -1},
		fence:       fencing{wake: make(chan struct{}, 1)},
	}
	if !p.transactional() {
		p.refusal = "kafka has not been asked yet"
	}
	p.metrics = newMetrics(p, register)
	return p, nil
}

// Run owns every goroutine of the publisher: the lanes, the look-up of topics and
// the health probe. It returns nil when ctx ends, after all of them have.
func (p *Publisher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	p.mu.Lock()
	p.start = func(f func(context.Context)) { wg.Go(func() { f(ctx) }) }
	for _, t := range p.topics {
		for _, l := range t.lanes {
			p.start(l.run)
		}
	}
	p.mu.Unlock()
	wg.Go(func() { p.initProducer(ctx) })
	wg.Go(func() { p.manageTopics(ctx) })
	wg.Go(func() { p.probe(ctx) })
	<-ctx.Done()
	p.mu.Lock()
	p.start = nil
	p.mu.Unlock()
	wg.Wait()
	return nil
}

// Begin starts a session; one that is running ends first.
func (p *Publisher) Begin(s Session) {
	p.End()
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.reset: //nolint:errcheck // It was meant for the session before.
	default:
	}
	over, end := context.WithCancel(context.Background())
	p.session = &session{Session: s, over: over, end: end}
	p.latest = 0
	p.passed.Store(0)
	p.awaited.Store(math.MaxUint64)
	same := p.session.identity() == p.identity
	p.identity = p.session.identity()
	p.fence.begin()
	for _, t := range p.topics {
		t.begin(same)
	}
}

// End ends the session: no batch is written that was not written before, and rows
// that are queued are dropped, to come again in the next session. A batch that was
// written keeps its bytes and is repeated until it is decided, before anything else
// of its lane; what it settles then is a row of the past session, so it shows in
// no sequence of the next one, but the lane will not publish it again.
func (p *Publisher) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil {
		return
	}
	p.session.end()
	p.session = nil
	p.unfence()
	for _, t := range p.topics {
		t.end()
	}
}

// Publish queues a record, waiting while its lane or all lanes together hold too
// much memory. When it returns nil the row is in a lane, or in the queue of a topic
// whose partitions are not known yet. It returns a *RefusedError for a record that
// has no lane, ErrSessionOver when there is no session (any more), or ctx's error. A
// dead record that has no lane needs none.
func (p *Publisher) Publish(ctx context.Context, r *Record) error {
	if err := checkTopic(r.Topic); err != nil {
		if r.Dead {
			return nil
		}
		return &RefusedError{Topic: r.Topic, Reason: ReasonInvalidTopic, Problem: err.Error()}
	}
	body := 0
	if !r.Dead {
		body = bodySize(r, p.stampLen)
	}
	if body+headerBytes > p.cfg.MaxRequestBytes {
		return &RefusedError{Topic: r.Topic, Reason: ReasonTooLarge, Problem: fmt.Sprintf(
			"it has %d bytes, more than kafka.max_request_bytes (%d)", body, p.cfg.MaxRequestBytes)}
	}
	hash := murmur2(placement(r))
	size := body + len(r.ID)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil {
		return ErrSessionOver
	}
	t := p.topic(r.Topic)
	l, q := t.place(hash)
	for !p.budget.fits(q, p.budget.need(q, size)) {
		if err := p.wait(ctx, q); err != nil {
			return err
		}
		l, q = t.place(hash)
	}
	c, buf := p.budget.reserve(q, size)
	p.budget.charge(q, rowBytes)
	idHash := position.HashID(r.ID)
	if !r.Dead {
		buf = appendBody(buf, r, t.stamp(r.Position, idHash), p.stampLen)
	}
	buf = append(buf, r.ID...)
	row := row{
		body: buf[:body:body], id: buf[body:], chunk: c,
		pos: r.Position, seq: r.Seq,
		idHash: idHash, stampAt: body - p.stampLen, keyHash: hash,
		time: r.Time.UnixMilli(), letter: r.Letter, source: r.Source, dead: r.Dead,
	}
	if !r.CommitTime.IsZero() {
		row.commit = r.CommitTime.UnixNano()
	}
	q.push(row)
	p.rows++
	p.latest = r.Seq
	if l != nil {
		if r.More {
			l.hold()
		} else {
			l.signal()
		}
	}
	return nil
}

// Flush wakes the lanes of records that were published with More.
func (p *Publisher) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flush()
}

func (p *Publisher) flush() {
	for _, l := range p.held {
		l.held = false
		l.signal()
	}
	clear(p.held)
	p.held = p.held[:0]
}

// wait blocks until memory has become free. It gives up the mutex meanwhile.
func (p *Publisher) wait(ctx context.Context, q *queue) error {
	p.flush() // Else what is held might be what memory waits for.
	s := p.session
	first := p.blocked == nil
	p.blocked = q
	p.mu.Unlock()
	if first && s.Blocked != nil {
		s.Blocked(true)
		defer s.Blocked(false)
	}
	var err error
	select {
	case <-p.space:
	case <-s.over.Done():
		err = ErrSessionOver
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	p.blocked = nil
	if err == nil && p.session != s {
		err = ErrSessionOver
	}
	return err
}

// freed wakes a Publish that waits for memory.
func (p *Publisher) freed() {
	if p.blocked != nil {
		notify(p.space)
	}
}

// Settled receives after rows have been settled, at most one notification being
// pending.
func (p *Publisher) Settled() <-chan struct{} { return p.settled }

// Reset receives an error when the session has to be ended and begun anew from the
// confirmed position: the publisher has given up the lanes of a topic, or a partition
// says that the history is another one (*HistoryError, *TimelineError).
func (p *Publisher) Reset() <-chan error { return p.reset }

// ask asks for the end of the session.
func (p *Publisher) ask(err error) {
	select {
	case p.reset <- err:
	default:
	}
}

// Blocked reports whether Publish is waiting for memory.
func (p *Publisher) Blocked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocked != nil
}

// Decided returns how many rows this process has had acknowledged.
func (p *Publisher) Decided() uint64 { return p.decided.Load() }

// Oldest returns the lowest sequence of the session that is not settled, and false
// when every row that Publish has returned for is. It costs O(lanes).
//
// The answer is about rows handed over before the call. Whoever pairs it with the
// ends of transactions must have read those before, not after.
func (p *Publisher) Oldest() (seq uint64, any bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.oldest()
}

func (p *Publisher) oldest() (oldest uint64, any bool) {
	for _, t := range p.topics {
		if seq := t.oldest(); seq != 0 && (!any || seq < oldest) {
			oldest, any = seq, true
		}
	}
	return oldest, any
}

// errUnproved is why there is nothing to wait for any more.
var errUnproved = errors.New("rows were passed over, and the one that proves that they are published has not come")

// Drained waits until every row of the session is settled, or ctx ends, or waiting is
// in vain: it is called when no more rows will come.
func (p *Publisher) Drained(ctx context.Context) error {
	const poll = 10 * time.Millisecond
	t := time.NewTicker(poll)
	defer t.Stop()
	for {
		p.mu.Lock()
		_, any := p.oldest()
		rows := p.rows
		p.mu.Unlock()
		switch {
		case !any:
			return nil
		case rows == 0:
			return errUnproved
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sequence returns the numbering of a partition, which outlives its lane.
func (p *Publisher) sequence(name partitionName) *sequence {
	s := p.sequences[name]
	if s == nil {
		s = newSequence()
		p.sequences[name] = s
	}
	return s
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
