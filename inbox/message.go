package inbox

import (
	"context"
	"crypto/sha256"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Header is a header of a record.
type Header struct {
	Name  string
	Value []byte
}

// Message is what a consumer handles: a record and the id that tells its copies.
type Message struct {
	// ID is the message id, the record's header id: cdc-relay puts the id of the outbox
	// row there. Two records with one ID are one message, whatever else they hold.
	ID string
	// Topic, Partition and Offset are where the record was read.
	Topic     string
	Partition int
	Offset    int64
	// Key decides on the order: the messages of one key of one topic are handled in the
	// order in which they are given to [Processor.Process]. nil is no key, and no order.
	Key []byte
	// Value is the payload; nil is a tombstone.
	Value []byte
	// Headers are the record's headers as they came.
	Headers []Header
	// Time is the record's time.
	Time time.Time
}

// Header returns the value of the last header of that name.
func (m *Message) Header(name string) (value string, ok bool) {
	for _, h := range slices.Backward(m.Headers) {
		if h.Name == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// Type is the header type, which says what happened; "" without one.
func (m *Message) Type() string {
	kind, _ := m.Header("type")
	return kind
}

// Version is the header aggregateversion; false when there is none, or no number.
func (m *Message) Version() (version int64, ok bool) {
	text, ok := m.Header("aggregateversion")
	if !ok {
		return 0, false
	}
	version, err := strconv.ParseInt(text, 10, 64)
	return version, err == nil
}

// Position is the header cdc-relay-position (docs/position-header.md).
func (m *Message) Position() (position string, ok bool) { return m.Header("cdc-relay-position") }

// lane names what has an order: one key of one topic, as the SQL function
// cdc_inbox_lane does. nil for a message without key.
func (m *Message) lane() []byte {
	if m.Key == nil {
		return nil
	}
	h := sha256.New()
	h.Write([]byte(m.Topic))
	h.Write([]byte{0})
	h.Write(m.Key)
	return h.Sum(nil)
}

// readAt is where the record was read, the id of a message that has none.
func (m *Message) readAt() string {
	return m.Topic + "/" + strconv.Itoa(m.Partition) + "/" + strconv.FormatInt(m.Offset, 10)
}

// Handler produces the effect of a message, in tx. Its error, or a panic, rolls the
// effect back, and the message is delivered again: see [Permanent] and [RetryAfter] for
// errors that say more. tx belongs to the [Processor], which commits it; savepoints
// (tx.Begin) are the handler's own business. What it does outside tx may happen more than
// once: see [IdempotencyKey]. The handler must not keep m or its bytes.
type Handler func(ctx context.Context, tx pgx.Tx, m *Message) error
