package inboxkafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/inbox"
)

const (
	fetchBackoff    = 100 * time.Millisecond
	fetchBackoffMax = 5 * time.Second
)

// partition is one that the member has, in one generation of the group.
type partition struct {
	topic string
	index int
	limit int // of records in flight
	room  chan struct{}

	mu        sync.Mutex
	offsets   offsets
	end       int64
	committed int64
}

func newPartition(topic string, index int, from int64, limit int) *partition {
	return &partition{topic: topic, index: index, limit: limit, room: make(chan struct{}, 1), offsets: offsets{next: from}, committed: from}
}

// read fetches the partition until ctx ends, and gives the messages to add. While as many
// are in flight as may be, it waits.
func (s *session) read(ctx context.Context, p *partition) {
	failures := 0
	for ctx.Err() == nil {
		err := s.readOnce(ctx, p)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil && failures > 0:
			s.fetches.ends()
			failures = 0
		case err != nil:
			if failures++; failures == 1 {
				s.fetches.begins(p, err)
			}
		}
		pause(ctx, backoff(failures))
	}
}

// stuck logs when the first partition of the member cannot be fetched, and when none is
// left that cannot: a broker that is down takes many with it.
type stuck struct {
	log   *slog.Logger
	group string

	mu         sync.Mutex
	partitions int // that fail now
	most       int
	since      time.Time
}

func (s *stuck) begins(p *partition, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.partitions++; s.partitions == 1 {
		s.since, s.most = time.Now(), 0
		s.log.Warn("cannot fetch, trying again", "group", s.group, "topic", p.topic, "partition", p.index, "err", err)
	}
	s.most = max(s.most, s.partitions)
}

func (s *stuck) ends() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.partitions--; s.partitions == 0 {
		s.log.Info("over: cannot fetch", "group", s.group, "after", time.Since(s.since).Round(time.Millisecond), "partitions", s.most)
	}
}

// readOnce fetches once.
func (s *session) readOnce(ctx context.Context, p *partition) error {
	from := p.position()
	if from < 0 {
		first, _, err := bounds(ctx, s.client, p.topic, p.index)
		if err == nil {
			p.begin(first)
		}
		return err
	}
	if !p.hasRoom(ctx) {
		return nil
	}
	got, err := fetch(ctx, s.client, p.topic, p.index, from, s.cfg.MaxBytes)
	if errors.Is(err, kafka.OffsetOutOfRange) {
		return s.outOfRange(ctx, p, from)
	}
	if err != nil {
		return err
	}
	p.sees(got.end)
	for _, m := range got.messages {
		if !p.hasRoom(ctx) {
			return nil
		}
		p.add(m)
		s.lanes.add(p, m)
	}
	p.pass(got.next)
	return nil
}

// outOfRange begins anew at the earliest record: the retention has overtaken the group, or
// the topic was made again. What was handled before is recognised.
func (s *session) outOfRange(ctx context.Context, p *partition, from int64) error {
	if !p.hasAtMost(ctx, 0) { // offsets of a topic that was made again mean other records
		return nil
	}
	first, end, err := bounds(ctx, s.client, p.topic, p.index)
	if err != nil {
		return err
	}
	if from < first {
		s.cfg.Logger.Error("records were deleted before this group had read them", "group", s.cfg.Group,
			"topic", p.topic, "partition", p.index, "from", from, "to", first-1)
	} else {
		s.cfg.Logger.Warn("the partition is shorter than what this group has read, reading it from its start", "group", s.cfg.Group,
			"topic", p.topic, "partition", p.index, "read", from, "end", end)
	}
	p.begin(first)
	return nil
}

func (p *partition) position() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offsets.next
}

// begin sets the position; nothing is in flight.
func (p *partition) begin(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offsets = offsets{next: offset}
	p.committed = -1
}

// hasRoom waits until a record may be read; false when ctx has ended.
func (p *partition) hasRoom(ctx context.Context) bool { return p.hasAtMost(ctx, p.limit-1) }

// hasAtMost waits until no more than that many records are in flight. Only the reader of
// the partition calls it.
func (p *partition) hasAtMost(ctx context.Context, most int) bool {
	for {
		p.mu.Lock()
		n := p.offsets.pending()
		p.mu.Unlock()
		if n <= most {
			return ctx.Err() == nil
		}
		select {
		case <-p.room:
		case <-ctx.Done():
			return false
		}
	}
}

func (p *partition) add(m inbox.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offsets.add(m.Offset, m.Time)
}

func (p *partition) pass(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offsets.pass(offset)
}

func (p *partition) sees(end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = end
}

func (p *partition) settle(offset int64) {
	p.mu.Lock()
	p.offsets.settle(offset)
	p.mu.Unlock()
	select {
	case p.room <- struct{}{}:
	default:
	}
}

// uncommitted returns the offset to commit; false when that is done.
func (p *partition) uncommitted() (offset int64, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	offset, _ = p.offsets.committable()
	return offset, offset >= 0 && offset != p.committed
}

func (p *partition) commits(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.committed = offset
}

// backlog is how many records are not settled, and the time of the first of them.
func (p *partition) backlog() (lag int64, oldest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	offset, oldest := p.offsets.committable()
	return max(0, p.end-max(offset, 0)), oldest
}
