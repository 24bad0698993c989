package publish

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

const (
	// firstWindow is how many records the first step backwards covers. Each further
	// step is windowGrowth times as wide.
	firstWindow  = 16
	windowGrowth = 4
	// firstFetch is about what one request of the first step reads; it grows like the
	// window, up to maxFetch. All that is fetched has to be decoded.
	firstFetch = 64 << 10
	maxFetch   = 1 << 20
)

// found is what a reading has found.
type found struct {
	end int64 // of the partition
	// ours means that there are records of the lane's own rows. pos is the highest of
	// their positions, with the hash of its message id, at offset at.
	ours   bool
	pos    position.Position
	idHash uint64
	at     int64
	// copies are those of them that were settled before the reading.
	copies int
	// timeline is the highest one of this history, if it is above the session's.
	timeline uint32
}

// scan reads a part of a partition, backwards in growing windows, since what counts
// is near the end.
type scan struct {
	reading
	found
	p         *Publisher
	topic     string
	partition int

	records, bytes int // read, the bytes as asked for
	// below means that a record from before the session's start has been seen. What
	// precedes it is older.
	below bool
}

func (s *scan) run(ctx context.Context) error {
	o, err := s.p.broker.Offsets(ctx, s.topic, s.partition)
	if err != nil {
		return err
	}
	s.end = o.End
	hi, floor := o.End, max(o.First, s.from)
	if s.to >= 0 {
		hi = min(hi, s.to)
	}
	window, ask := firstWindow, firstFetch
	for hi > floor && !s.done() {
		lo := max(floor, hi-int64(s.fit(window)))
		if err := s.forward(ctx, lo, hi, ask); err != nil {
			return err
		}
		s.records += int(hi - lo)
		hi = lo
		window, ask = window*windowGrowth, min(ask*windowGrowth, maxFetch)
	}
	return nil
}

// done reports that what lies further back does not count.
func (s *scan) done() bool {
	if s.purpose == glance {
		return s.records > 0
	}
	return s.below && s.purpose == opening || s.spent() || s.records >= s.p.cfg.ResumeMaxRecords
}

func (s *scan) spent() bool { return s.bytes >= s.p.cfg.ResumeMaxBytes }

// fit bounds a window by what may still be read, judging by what has been.
func (s *scan) fit(window int) int {
	window = min(window, s.p.cfg.ResumeMaxRecords-s.records)
	if s.records > 0 {
		perRecord := s.bytes/s.records + 1
		window = min(window, (s.p.cfg.ResumeMaxBytes-s.bytes)/perRecord)
	}
	return max(window, 1)
}

// forward reads the records from lo to hi, about ask bytes at a time. To stop early,
// when too much has been read, costs repeats at worst.
func (s *scan) forward(ctx context.Context, lo, hi int64, ask int) error {
	each := func(offset int64, value []byte) {
		if value != nil && offset < hi {
			s.see(offset, value)
		}
	}
	for at := lo; at < hi && !s.spent(); {
		next, err := s.p.broker.Fetch(ctx, s.topic, s.partition, at, ask, position.Header, each)
		if err != nil {
			return err
		}
		if next <= at {
			return fmt.Errorf("read %s[%d]: it ends at offset %d, before %d", s.topic, s.partition, at, s.end)
		}
		s.bytes += ask
		at = next
	}
	return nil
}

// see judges one record by its position header. Only what was written from the same
// history and timeline, under the same routing and partition count, says something
// about the lane's rows.
func (s *scan) see(offset int64, value []byte) {
	stamp, err := position.Parse(value)
	if err != nil || stamp.History != s.session.History {
		return
	}
	// Positions go on across a promotion, so the records of an earlier timeline end the
	// reading too.
	s.below = s.below || stamp.Timeline <= s.session.Timeline && stamp.Commit < s.session.Start
	if stamp.Timeline != s.session.Timeline {
		if stamp.Timeline > s.session.Timeline {
			s.timeline = max(s.timeline, stamp.Timeline)
		}
		return
	}
	if stamp.Fingerprint != s.session.Fingerprint || stamp.Partitions != s.partitions {
		return
	}
	if stamp.Compare(s.settled) <= 0 {
		s.copies++
	}
	if c := stamp.Compare(s.pos); !s.ours || c > 0 || c == 0 && offset > s.at {
		s.ours, s.pos, s.idHash, s.at = true, stamp.Position, stamp.IDHash, offset
	}
}
