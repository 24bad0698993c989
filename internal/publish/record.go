package publish

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

// Header is one header of a record. A nil Value is a null.
type Header struct {
	Name  string
	Value []byte
}

// Record is one row on its way to Kafka. Publish copies what its slices hold, so
// they may be reused as soon as it returns.
type Record struct {
	// Topic is where the record goes.
	Topic string
	// Key decides the partition; nil is the null key, which is placed by ID
	// instead. An empty key is a key.
	Key []byte
	// Value is published unchanged; nil is a null value (a tombstone).
	Value []byte
	// Headers are sent in this order; the position header follows them.
	Headers []Header
	// Time is the record's timestamp (CreateTime), in milliseconds on the wire.
	Time time.Time
	// CommitTime is when the row's transaction committed, for the latency metric.
	// Zero leaves the row out of it.
	CommitTime time.Time
	// ID is the message id: its hash goes into the position header, and it names
	// the row in logs.
	ID []byte
	// Position of the row in the stream. It never decreases within a session.
	Position position.Position
	// Seq numbers the rows of a session, from 1 and without gaps.
	Seq uint64
	// More says that other records may follow at once: the lane is not woken for
	// this one but by Flush, so that fewer and larger batches are sent.
	More bool
	// Dead says that the row is settled already: it passes through its lane, so that
	// an anchor can be proved by it, and is never sent.
	Dead bool
	// Letter is the id of the dead letter that the record replays, 0 if it is none.
	Letter int64
	// Source is a number of the caller's for where the row is from. It is only given
	// back.
	Source uint32
}

// RefusedError is a record that no lane can take: it would fail for ever.
type RefusedError struct {
	Topic string
	// Reason is a label, see [Refusal]; Problem says it in words.
	Reason  string
	Problem string
}

// Label is the reason as a label.
func (e *RefusedError) Label() string { return e.Reason }

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("record for topic %.249q cannot be published: %s", e.Topic, e.Problem)
}

// row is one encoded record in a queue.
type row struct {
	// body is the record on the wire from the key's length on. What precedes it
	// depends on the row's place in its batch.
	body []byte
	// id is the message id, for errors; it shares the chunk with body.
	id    []byte
	chunk *chunk
	pos   position.Position
	seq   uint64
	// idHash, stampAt and keyHash let a row that waited for its topic be placed and
	// stamped once the partition count is known.
	idHash  uint64
	stampAt int
	keyHash uint32
	source  uint32 // see Record
	// time is in milliseconds, commit and failed (the first counted failure) are in
	// nanoseconds since 1970; 0 = none.
	time, commit, failed int64
	letter               int64
	// attempts counts requests that carried the row and failed for a reason that passes.
	attempts int32
	dead     bool // see Record
	alone    bool // the broker has refused it among others
	doubtful bool // an attempt ended without proof that it was not appended
	again    bool // out of attempts, but it may be tried once more
}

// rowBytes is what one row costs beside its encoded bytes.
const rowBytes = 152

var (
	errTopicName     = errors.New("its name is not 1 to 249 characters of [A-Za-z0-9._-] (nor may it be . or ..)")
	errTopicInternal = errors.New("only brokers write to it")
)

// checkTopic applies Kafka's rule for topic names. The client library answers an
// invalid one with "topic not found", for ever.
func checkTopic(name string) error {
	if name == "" || len(name) > 249 || name == "." || name == ".." {
		return errTopicName
	}
	for i := range len(name) {
		c := name[i]
		ok := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
		if !ok {
			return errTopicName
		}
	}
	switch name { // Which the client library does not find either.
	case "__consumer_offsets", "__transaction_state", "__share_group_state":
		return errTopicInternal
	}
	return nil
}

// bodySize is the number of bytes that appendBody writes.
func bodySize(r *Record, stampLen int) int {
	n := bytesSize(r.Key) + bytesSize(r.Value) + varintSize(int64(len(r.Headers)+1))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintSize(int64(len(h.Name))) + len(h.Name) + bytesSize(h.Value)
	}
	return n + varintSize(int64(len(position.Header))) + len(position.Header) + varintSize(int64(stampLen)) + stampLen
}

// appendBody encodes r (KIP-98, record format 2) from the key's length on. The
// stamp is the last header's value, at the end.
func appendBody(dst []byte, r *Record, stamp position.Stamp, stampLen int) []byte {
	dst = appendBytes(dst, r.Key)
	dst = appendBytes(dst, r.Value)
	dst = binary.AppendVarint(dst, int64(len(r.Headers)+1))
	for i := range r.Headers {
		h := &r.Headers[i]
		dst = append(binary.AppendVarint(dst, int64(len(h.Name))), h.Name...)
		dst = appendBytes(dst, h.Value)
	}
	dst = append(binary.AppendVarint(dst, int64(len(position.Header))), position.Header...)
	dst = binary.AppendVarint(dst, int64(stampLen))
	return stamp.AppendText(dst)
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(dst, -1)
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}

func bytesSize(b []byte) int {
	if b == nil {
		return 1
	}
	return varintSize(int64(len(b))) + len(b)
}

// varintSize is the length of v as a zigzag varint.
func varintSize(v int64) int {
	z := uint64(v)<<1 ^ uint64(v>>63)
	return (bits.Len64(z|1) + 6) / 7
}
