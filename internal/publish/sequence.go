package publish

import (
	"math"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// sequence numbers the batches of one partition. It belongs to the process, not to
// the lane: the broker compares producer id, epoch and numbers, never the content,
// so a number that is given to two batches makes it swallow the second with
// "success" (KIP-98).
type sequence struct {
	// producer is what the partition's batches carry, ID -1 before the first.
	producer broker.Producer
	// spent means that numbers of that epoch may belong to a batch that was given up:
	// no other batch goes out in it.
	spent bool
	// next is the number of the next row, from 0, wrapping at 2^31-1.
	next int32
	// last is the offset of the last record acknowledged or read, -1 when none is known.
	last int64
}

func newSequence() *sequence {
	return &sequence{producer: broker.Producer{ID: -1}, last: -1}
}

// advance takes n numbers, which have been acknowledged.
func (s *sequence) advance(n int) {
	s.next = int32((int64(s.next) + int64(n)) & math.MaxInt32)
}

// adopt has the next batch be the first one of a producer or epoch.
func (s *sequence) adopt(p broker.Producer) {
	s.producer, s.spent, s.next = p, false, 0
}

// partitionName identifies a partition.
type partitionName struct {
	topic     string
	partition int
}
