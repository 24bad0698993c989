package checker

import (
	"strconv"
	"strings"
)

// positionHeader is the header that says where in the write-ahead log a record comes from, as docs/position-header.md
// describes it. The checker reads it by itself.
const positionHeader = "cdc-relay-position"

// position is what the header says of a row: where it is in the write-ahead log of one history and timeline.
type position struct {
	history  uint64
	timeline uint32
	commit   uint64 // LSN of the transaction's commit record
	lsn      uint64 // LSN of the change
	kind     byte
	index    uint32
}

// parsePosition returns the position of a header, and whether it is one.
func parsePosition(header string) (position, bool) {
	fields := strings.Split(header, ".")
	if len(header) != 115 || len(fields) != 10 || fields[0] != "1" {
		return position{}, false
	}
	valid := true
	number := func(field string, bits int) uint64 {
		n, err := strconv.ParseUint(field, 16, bits)
		valid = valid && err == nil && len(field) == bits/4
		return n
	}
	p := position{
		history: number(fields[1], 64), timeline: uint32(number(fields[2], 32)),
		commit: number(fields[5], 64), lsn: number(fields[6], 64),
		kind: fields[7][0], index: uint32(number(fields[8], 32)),
	}
	return p, valid
}
