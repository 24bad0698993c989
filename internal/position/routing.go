package position

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
)

// Routing is everything that decides which records exist and which topic and
// partition they go to, the partition count excepted (a stamp carries that by
// itself). A position found in a topic says something about a row only if it was
// written under the same routing: a row that now goes elsewhere must not be
// judged by the tail of its new partition.
type Routing struct {
	// Slot and Database name the stream.
	Slot, Database string
	// Publications are the publication names; their order does not matter.
	Publications []string
	// Messages says whether logical messages are asked for, and MessagePrefix
	// which of them are ours.
	Messages      bool
	MessagePrefix string
	// Tables are the configured tables in one canonical spelling; their order
	// does not matter.
	Tables []string
	// Columns is the column map, role to exact column name.
	Columns map[string]string
	// Filters are further conditions that a row must meet to be published.
	Filters []string
	// Topic and Key are the templates as configured.
	Topic, Key string
	// Partitioner names the function from key to partition.
	Partitioner string
}

// Fingerprint is a hash of r and of the header's format: the first 64 bits of the
// SHA-256 of an encoding in which different values never look the same.
func (r Routing) Fingerprint() uint64 {
	b := []byte{formatVersion}
	b = appendString(b, r.Slot)
	b = appendString(b, r.Database)
	b = appendSet(b, r.Publications)
	b = appendBool(b, r.Messages)
	b = appendString(b, r.MessagePrefix)
	b = appendSet(b, r.Tables)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Columns)))
	for _, role := range slices.Sorted(maps.Keys(r.Columns)) {
		b = appendString(appendString(b, role), r.Columns[role])
	}
	b = appendSet(b, r.Filters)
	b = appendString(b, r.Topic)
	b = appendString(b, r.Key)
	b = appendString(b, r.Partitioner)
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// appendString writes the length first, so that neighbours cannot run together.
func appendString(dst []byte, s string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s)))
	return append(dst, s...)
}

func appendSet(dst []byte, set []string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(set)))
	for _, s := range slices.Sorted(slices.Values(set)) {
		dst = appendString(dst, s)
	}
	return dst
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}
