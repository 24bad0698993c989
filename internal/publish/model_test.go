package publish_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// fault is what the model does to one attempt.
type fault int

const (
	none         fault = iota
	noLeader           // refused by the client
	noBroker           // refused by the client
	notLeader          // code 6, not appended
	notEnough          // code 19, not appended
	unknownTopic       // code 3, not appended
	answerLost         // appended, no answer
	requestLost        // not appended, no answer
	requestLate        // no answer; appended when the next attempt arrives
	timedOut           // code 7, appended
	afterAppend        // code 20, appended
	storageError       // code 56, not appended, which the client cannot know
	unlisted           // code 21, not appended, which the client cannot know
	numFaults

	outOfOrder   // code 45, not appended, which the client cannot know
	duplicate    // code 46, likewise
	unknownID    // code 59, likewise
	fencedOff    // code 47, likewise
	producerGone // the broker forgets all producers of the partition, then as none
	oldOffset    // acknowledged at offset 0 and not appended
	invalidTopic // code 17, not appended
)

// modelBroker is a broker with Kafka's rules for producer ids, written from KIP-98:
// it knows a batch again by producer, epoch, first and last sequence among the last
// five, refuses gaps (45), and never compares the content. It complains when a
// sequence number is given to other rows while a batch with it may still arrive.
type modelBroker struct {
	mu        sync.Mutex
	topics    map[string][]*modelPartition
	latency   time.Duration
	hidden    bool            // the user may see no topic, so that the client finds none
	unseen    map[string]bool // topics made since the layout in the client's cache was read
	down      bool            // nobody answers, so that the client finds none either
	maxBytes  int
	refuse    func(value string) bool // rows refused with refusal
	refusal   kafka.Error             // 0 is 87
	names     bool                    // name the refused rows
	created   []string
	settings  func(topic string) (broker.TopicSettings, error)
	createFn  func(name string) error
	initFn    func() error
	pingFn    func(ctx context.Context) error
	producers int              // ids given out
	epochs    map[string]int16 // of transactional ids
	perFetch  int              // records of one answer, 0 is ten
	fetches   int
	produced  int
	appended  int
	problems  []string
	// unanswered are batches whose request ended without an answer: a transport may
	// read them at any later time.
	unanswered []unanswered
}

type unanswered struct {
	batch broker.Batch
	raw   []byte
}

// verify checks that what a late transport would send is what was sent.
func (m *modelBroker) verify() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.unanswered {
		var buf bytes.Buffer
		if _, err := u.batch.WriteTo(&buf); err != nil || !bytes.Equal(buf.Bytes(), u.raw) {
			m.complain("a batch without an answer has changed")
		}
	}
}

type modelPartition struct {
	faults    []fault
	log       []modelRecord // by offset
	first     int64         // where the log starts
	hidden    int           // records above the high watermark
	producers map[int64]*modelProducer
	sizes     []int // records of each batch appended
	late      [][]byte
	// sent maps a sequence number to the batch that may have been written with it.
	sent map[string]string
	hold chan struct{} // while not nil attempts wait for it, or time out
	// reads are the errors of the next requests that read; nil is none.
	reads  []error
	onRead func() // called before each request that reads, without the lock
}

func newPartition() *modelPartition {
	return &modelPartition{producers: map[int64]*modelProducer{}, sent: map[string]string{}}
}

// modelProducer is what a partition remembers of one producer id.
type modelProducer struct {
	epoch  int16
	recent []modelBatch // the last five
}

type modelRecord struct {
	key, value string
	header     []byte // the position header, nil for other writers' records
	stamp      position.Stamp
	time       time.Time
	order      int  // over all partitions
	gone       bool // compacted away
}

type modelBatch struct {
	first, last int32
	offset      int64
	raw         string
}

func newModel(topic string, partitions int) *modelBroker {
	m := &modelBroker{topics: map[string][]*modelPartition{}, latency: time.Millisecond}
	if topic != "" {
		m.grow(topic, partitions)
	}
	return m
}

func (m *modelBroker) grow(topic string, partitions int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.topics[topic]) < partitions {
		m.topics[topic] = append(m.topics[topic], newPartition())
	}
}

func (m *modelBroker) complain(format string, args ...any) {
	m.problems = append(m.problems, fmt.Sprintf(format, args...))
}

func (m *modelBroker) InitProducer(context.Context) (broker.Producer, error) {
	if m.initFn != nil {
		if err := m.initFn(); err != nil {
			return broker.Producer{ID: -1}, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.producers++
	return broker.Producer{ID: int64(6 + m.producers)}, nil
}

func (m *modelBroker) Partitions(ctx context.Context, topic string) (int, error) {
	m.mu.Lock()
	cached := !m.unseen[topic]
	m.mu.Unlock()
	if !cached {
		return 0, fmt.Errorf("look up: %w", broker.ErrUnknownTopic)
	}
	return m.PartitionsNow(ctx, topic)
}

func (m *modelBroker) PartitionsNow(_ context.Context, topic string) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.hidden:
		return 0, &broker.Error{Op: "look up", Err: kafka.TopicAuthorizationFailed}
	case m.down:
		return 0, errNoAnswer
	}
	if n := len(m.topics[topic]); n > 0 {
		return n, nil
	}
	return 0, fmt.Errorf("look up: %w", broker.ErrUnknownTopic)
}

func (m *modelBroker) CreateTopic(_ context.Context, name string, spec broker.TopicSpec) error {
	if m.createFn != nil {
		if err := m.createFn(name); err != nil {
			return err
		}
	}
	m.grow(name, spec.Partitions)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.created = append(m.created, name)
	return nil
}

func (m *modelBroker) TopicSettings(_ context.Context, topic string) (broker.TopicSettings, error) {
	if m.settings != nil {
		return m.settings(topic)
	}
	return broker.TopicSettings{ReplicationFactor: 3, MinInsyncReplicas: 2}, nil
}

func (m *modelBroker) Refresh() {}

func (m *modelBroker) Ping(ctx context.Context) error {
	if m.pingFn != nil {
		return m.pingFn(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return errNoAnswer
	}
	return nil
}

const requestTimeout = 10 * time.Second

func (m *modelBroker) Produce(ctx context.Context, topic string, partition int, batch broker.Batch) (broker.Produced, error) {
	var buf bytes.Buffer
	if n, err := batch.WriteTo(&buf); err != nil || int(n) != batch.Size() || buf.Len() != batch.Size() {
		return broker.Produced{}, fmt.Errorf("batch of %d bytes wrote %d: %w", batch.Size(), n, err)
	}
	raw := buf.Bytes()
	m.mu.Lock()
	m.produced++
	if partition >= len(m.topics[topic]) {
		m.mu.Unlock()
		return broker.Produced{}, protocol.NewErrNoTopic(topic)
	}
	p := m.topics[topic][partition]
	for _, r := range p.late {
		m.append(p, r)
	}
	p.late = nil
	f := none
	if len(p.faults) > 0 {
		f, p.faults = p.faults[0], p.faults[1:]
	}
	hold, latency := p.hold, m.latency
	m.mu.Unlock()
	if hold != nil {
		if err := wait(ctx, hold, requestTimeout); err != nil {
			f = requestLost
		}
	}
	err := wait(ctx, nil, latency)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		m.cut(p, raw, f)
		return broker.Produced{}, ctx.Err()
	}
	if m.hidden || m.down || m.unseen[topic] {
		return broker.Produced{}, protocol.NewErrNoTopic(topic)
	}
	res, err := m.attempt(p, raw, f)
	if err != nil && broker.MayHaveBeenWritten(err) {
		m.unanswered = append(m.unanswered, unanswered{batch, raw})
	}
	return res, err
}

// cut ends an attempt whose process was killed: the request was on its way.
func (m *modelBroker) cut(p *modelPartition, raw []byte, f fault) {
	switch f {
	case none, answerLost, timedOut, afterAppend:
		m.append(p, raw)
	case requestLate:
		p.late = append(p.late, bytes.Clone(raw))
	default:
	}
}

var errNoAnswer = errors.New("connection reset")

// wait waits for c, at most d; it returns an error when c was not closed.
func wait(ctx context.Context, c <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
		return nil
	case <-t.C:
		return context.DeadlineExceeded
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *modelBroker) attempt(p *modelPartition, raw []byte, f fault) (broker.Produced, error) {
	code := func(c kafka.Error) (broker.Produced, error) { return broker.Produced{Code: int(c)}, nil }
	switch f {
	case noLeader:
		return broker.Produced{}, protocol.ErrNoLeader
	case noBroker:
		return broker.Produced{}, kafka.BrokerNotAvailable
	case notLeader:
		return code(kafka.NotLeaderForPartition)
	case notEnough:
		return code(kafka.NotEnoughReplicas)
	case unknownTopic:
		return code(kafka.UnknownTopicOrPartition)
	case answerLost:
		m.append(p, raw)
		m.mayBeWritten(p, raw)
		return broker.Produced{}, io.ErrUnexpectedEOF
	case requestLost:
		m.mayBeWritten(p, raw)
		return broker.Produced{}, errNoAnswer
	case requestLate:
		m.mayBeWritten(p, raw)
		p.late = append(p.late, bytes.Clone(raw))
		return broker.Produced{}, context.DeadlineExceeded
	case timedOut:
		m.append(p, raw)
		m.mayBeWritten(p, raw)
		return code(kafka.RequestTimedOut)
	case afterAppend:
		m.append(p, raw)
		m.mayBeWritten(p, raw)
		return code(kafka.NotEnoughReplicasAfterAppend)
	case storageError:
		m.mayBeWritten(p, raw)
		return code(kafka.KafkaStorageError)
	case outOfOrder, duplicate, unknownID, fencedOff:
		m.mayBeWritten(p, raw)
		return code(map[fault]kafka.Error{
			outOfOrder: kafka.OutOfOrderSequenceNumber, duplicate: kafka.DuplicateSequenceNumber,
			unknownID: kafka.UnknownProducerId, fencedOff: kafka.InvalidProducerEpoch,
		}[f])
	case invalidTopic:
		return code(kafka.InvalidTopic)
	case producerGone:
		p.producers = map[int64]*modelProducer{}
	case oldOffset:
		m.mayBeWritten(p, raw)
		return broker.Produced{}, nil
	case unlisted:
		m.mayBeWritten(p, raw)
		return code(kafka.InvalidRequiredAcks)
	}
	return m.append(p, raw), nil
}

// mayBeWritten notes a batch whose fate the client cannot know.
func (m *modelBroker) mayBeWritten(p *modelPartition, raw []byte) {
	h := readHeader(raw)
	for i := range h.count {
		p.sent[h.number(i)] = string(raw)
	}
}

// append applies the broker's rules.
func (m *modelBroker) append(p *modelPartition, raw []byte) broker.Produced {
	h := readHeader(raw)
	records, err := readRecords(raw)
	if err != nil || len(records) != h.count {
		m.complain("batch cannot be read: %d of %d records: %v", len(records), h.count, err)
		return broker.Produced{Code: int(kafka.InvalidMessage)}
	}
	for i := range h.count {
		key := h.number(i)
		if before, ok := p.sent[key]; ok && before != string(raw) {
			m.complain("sequence %s was given to other bytes while undecided", key)
		}
	}
	if m.maxBytes > 0 && len(raw) > m.maxBytes {
		return broker.Produced{Code: int(kafka.MessageSizeTooLarge)}
	}
	if res, bad := m.refused(records); bad {
		return res
	}
	b := modelBatch{first: h.sequence, last: h.sequence + int32(h.count) - 1, raw: string(raw)}
	w := p.producers[h.producer]
	switch {
	case w == nil:
		w = &modelProducer{epoch: h.epoch}
		p.producers[h.producer] = w
	case h.epoch < w.epoch:
		return broker.Produced{Code: int(kafka.InvalidProducerEpoch)}
	case h.epoch > w.epoch:
		if h.sequence != 0 {
			return broker.Produced{Code: int(kafka.OutOfOrderSequenceNumber)}
		}
		*w = modelProducer{epoch: h.epoch}
	default:
		for _, r := range w.recent {
			if r.first == b.first && r.last == b.last {
				if r.raw != b.raw {
					m.complain("a batch with sequence %d was swallowed", b.first)
				}
				return broker.Produced{BaseOffset: r.offset}
			}
		}
		if n := len(w.recent); n > 0 && w.recent[n-1].last+1 != b.first {
			return broker.Produced{Code: int(kafka.OutOfOrderSequenceNumber)}
		}
	}
	b.offset = int64(len(p.log))
	w.recent = append(w.recent, b)
	w.recent = w.recent[max(0, len(w.recent)-5):]
	p.sizes = append(p.sizes, h.count)
	m.write(p, records...)
	return broker.Produced{BaseOffset: b.offset}
}

// write appends records, whoever wrote them.
func (m *modelBroker) write(p *modelPartition, records ...modelRecord) {
	for i := range records {
		m.appended++
		records[i].order = m.appended
	}
	p.log = append(p.log, records...)
}

func (m *modelBroker) refused(records []modelRecord) (broker.Produced, bool) {
	if m.refuse == nil {
		return broker.Produced{}, false
	}
	res := broker.Produced{Code: int(cmp.Or(m.refusal, kafka.InvalidRecord))}
	bad := false
	for i, r := range records {
		if m.refuse(r.value) {
			bad = true
			if m.names {
				res.RecordErrors = append(res.RecordErrors, broker.RecordError{Index: i})
			}
		}
	}
	return res, bad
}
