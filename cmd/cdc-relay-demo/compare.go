package main

import (
	"fmt"
)

// event is what both sides know of one event: the outbox table and the reader.
type event struct {
	id      string
	key     string // which order or item: aggregateid of the row, key of the record
	version int64  // 1 for the first event about it, then 2, 3, …
}

// comparison is the difference between the outbox table and what the reader has read.
type comparison struct {
	committed  int // rows of the table
	delivered  int // rows that have arrived at least once
	missing    int // rows that have not arrived
	duplicate  int // further copies of rows that had arrived before
	outOfOrder int // first copies that came after a later event of the same key
	stray      int // records without a row like them: of a transaction rolled back, or altered

	examples []string // of what is wrong, a few
}

// ok says whether the relay has kept its promise. It is at-least-once: a row may be delivered again.
func (c comparison) ok() bool { return c.missing == 0 && c.outOfOrder == 0 && c.stray == 0 }

func (c *comparison) example(what string, e event) {
	if len(c.examples) < 5 {
		c.examples = append(c.examples, fmt.Sprintf("%s: key %q version %d id %q", what, e.key, e.version, e.id))
	}
}

// compare takes the rows in any order and the records in the order in which they were read. Of two events of one key
// the version tells which was committed first, since it is increased under the lock of the key's row.
func compare(rows, records []event) comparison {
	c := comparison{committed: len(rows)}
	inTable := make(map[string]event, len(rows))
	for _, row := range rows {
		inTable[row.id] = row
	}
	seen := make(map[string]bool, len(rows))
	newest := map[string]int64{} // highest version seen so far, by key
	for _, record := range records {
		switch {
		case inTable[record.id] != record || record.id == "":
			c.stray++
			c.example("delivered but not committed", record)
		case seen[record.id]:
			c.duplicate++
		case record.version < newest[record.key]:
			c.outOfOrder++
			c.example(fmt.Sprintf("delivered after version %d", newest[record.key]), record)
			seen[record.id] = true
		default:
			newest[record.key] = record.version
			seen[record.id] = true
		}
	}
	c.delivered = len(seen)
	for _, row := range rows {
		if !seen[row.id] {
			c.missing++
			c.example("committed but not delivered", row)
		}
	}
	return c
}
