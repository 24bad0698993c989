package inboxkafka

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// session is the work of one generation of the group: from the assignment of partitions
// until they are given back.
type session struct {
	cfg        *Config
	processor  *inbox.Processor
	client     *kafka.Client
	generation generation
	partitions []*partition
	lanes      *lanes
	fetches    *stuck
	commits    *trouble // of all sessions, which come one after the other
}

// generation is what a session needs of kafka.Generation.
type generation interface {
	CommitOffsets(offsets map[string]map[int]int64) error
}

func newSession(cfg *Config, p *inbox.Processor, client *kafka.Client, g *kafka.Generation) *session {
	s := &session{cfg: cfg, processor: p, client: client, generation: g, fetches: &stuck{log: cfg.Logger, group: cfg.Group}}
	n := 0
	for _, assigned := range g.Assignments {
		n += len(assigned)
	}
	limit := max(1, cfg.MaxInFlight/max(1, n))
	s.lanes = newLanes(limit * max(1, n))
	for topic, assigned := range g.Assignments {
		for _, a := range assigned {
			s.partitions = append(s.partitions, newPartition(topic, a.ID, a.Offset, limit))
		}
	}
	return s
}

// run works until ended is closed: then nothing new is read or begun, the handlers that
// run may finish, and what they have settled is committed. ctx has values, and no end.
func (s *session) run(ctx context.Context, ended <-chan struct{}) {
	reading, stopReading := context.WithCancel(ctx)
	handling, breakOff := context.WithCancel(ctx)
	defer breakOff()
	defer stopReading()
	var readers, workers, committer sync.WaitGroup
	for _, p := range s.partitions {
		readers.Go(func() { s.read(reading, p) })
	}
	for range s.cfg.Concurrency {
		workers.Go(func() { s.work(handling, reading.Done()) })
	}
	committing := make(chan struct{})
	committer.Go(func() { s.commitUntil(committing) })

	<-ended
	stopReading()
	late := time.AfterFunc(s.cfg.DrainTimeout, breakOff)
	defer late.Stop()
	readers.Wait()
	workers.Wait()
	close(committing)
	committer.Wait()
	for _, p := range s.partitions {
		s.cfg.Observer.Backlog(p.topic, p.index, 0, time.Time{})
	}
}

// work handles messages until stop is closed.
func (s *session) work(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-stop: // looked at first: what waits is for the next owner
			return
		default:
		}
		select {
		case <-stop:
			return
		case l := <-s.lanes.ready:
			s.handle(ctx, l)
		}
	}
}

// handle delivers the first message of a lane.
func (s *session) handle(ctx context.Context, l *lane) {
	m := s.lanes.first(l)
	r := s.processor.Process(ctx, &m)
	if r.Outcome == inbox.Retry {
		s.lanes.again(l, r.After)
		return
	}
	s.lanes.settled(l)
	l.id.partition.settle(m.Offset)
}

// commitUntil commits what is settled every CommitInterval, and once more at the end.
func (s *session) commitUntil(end <-chan struct{}) {
	tick := time.NewTicker(s.cfg.CommitInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.commits.after(s.commit())
			s.tellBacklog()
		case <-end:
			s.commits.after(s.commit())
			return
		}
	}
}

// commit commits the offsets behind which everything is settled. What a generation that
// is over cannot commit any more comes again, as duplicates.
func (s *session) commit() error {
	offsets := map[string]map[int]int64{}
	for _, p := range s.partitions {
		if offset, more := p.uncommitted(); more {
			if offsets[p.topic] == nil {
				offsets[p.topic] = map[int]int64{}
			}
			offsets[p.topic][p.index] = offset
		}
	}
	if len(offsets) == 0 {
		return nil
	}
	err := s.generation.CommitOffsets(maps.Clone(offsets))
	switch {
	case errors.Is(err, kafka.IllegalGeneration), errors.Is(err, kafka.UnknownMemberId), errors.Is(err, kafka.RebalanceInProgress):
		return nil // the generation ends by itself
	case err != nil:
		return err
	}
	for _, p := range s.partitions {
		if offset, ok := offsets[p.topic][p.index]; ok {
			p.commits(offset)
		}
	}
	return nil
}

func (s *session) tellBacklog() {
	for _, p := range s.partitions {
		lag, oldest := p.backlog()
		s.cfg.Observer.Backlog(p.topic, p.index, lag, oldest)
	}
}
