package inboxkafka

import "time"

// offsets knows which records of a partition are settled. What may be committed is the
// lowest offset that is not: records behind it that are settled already come again after
// a crash, and are duplicates then. It belongs to its partition's lock.
type offsets struct {
	next    int64 // where reading goes on
	records []tracked
	head    int // of records
}

type tracked struct {
	offset  int64
	at      time.Time
	settled bool
}

// add notes a record that was read; offsets only rise.
func (o *offsets) add(offset int64, at time.Time) {
	o.records = append(o.records, tracked{offset: offset, at: at})
	o.next = offset + 1
}

// pass notes that nothing before offset is left to read, such as control records.
func (o *offsets) pass(offset int64) { o.next = max(o.next, offset) }

// settle notes that a record is settled.
func (o *offsets) settle(offset int64) {
	low, high := o.head, len(o.records)
	for low < high {
		if mid := (low + high) / 2; o.records[mid].offset < offset {
			low = mid + 1
		} else {
			high = mid
		}
	}
	o.records[low].settled = true
	for o.head < len(o.records) && o.records[o.head].settled {
		o.head++
	}
	if o.head > len(o.records)/2 {
		o.records = append(o.records[:0], o.records[o.head:]...)
		o.head = 0
	}
}

// committable is the offset at which a new owner of the partition has to go on, and the
// time of its record if that was read.
func (o *offsets) committable() (offset int64, oldest time.Time) {
	if o.head < len(o.records) {
		return o.records[o.head].offset, o.records[o.head].at
	}
	return o.next, time.Time{}
}

// pending is how many records were read and are not settled, those behind an unsettled
// one included.
func (o *offsets) pending() int { return len(o.records) - o.head }
