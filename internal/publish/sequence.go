package publish

import "math"

// sequence numbers the batches of one partition. It belongs to the process, not to
// the lane: the broker compares producer id, epoch and numbers, never the content,
// so a number that is given to two batches makes it swallow the second with
// "success" (KIP-98).
type sequence struct {
	// epoch is the producer epoch in this partition. It is raised here, per
	// partition and keeping the producer id, which needs no request: the broker
	// takes a higher epoch that starts at number 0, and from then on refuses
	// whatever still carries the lower one.
	epoch int16
	// next is the number of the next row, from 0, wrapping at 2^31-1.
	next int32
	// last is the offset of the last acknowledged row, -1 when none is known.
	last int64
}

// advance takes n numbers, which have been acknowledged.
func (s *sequence) advance(n int) {
	s.next = int32((int64(s.next) + int64(n)) & math.MaxInt32)
}

// raise begins a new epoch. It reports false when there is none left.
func (s *sequence) raise() bool {
	if s.epoch == math.MaxInt16 {
		return false
	}
	s.epoch, s.next, s.last = s.epoch+1, 0, -1
	return true
}

// partitionName identifies a partition.
type partitionName struct {
	topic     string
	partition int
}
