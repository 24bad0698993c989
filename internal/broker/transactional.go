package broker

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go/protocol/initproducerid"
)

// InitTransactional asks the coordinator of a transactional id for its producer id,
// with an epoch that no one else has been given. From then on a partition that has
// seen the new epoch refuses every lower one. Epoch 0 says that the coordinator did
// not know the id, or that its epochs were used up: the producer id is a new one, and
// nobody is refused.
//
// With known as {-1, -1} the epoch is raised whoever holds the id. With known as the
// producer in use it is raised only while that is the last one given out (KIP-360,
// Kafka 2.5); code 90 or 47 says that it is not. Such a request may be repeated when
// its answer was lost.
//
// Codes 14, 15, 16 and 51 go by themselves: ask again. It needs the permission to
// write to the transactional id.
func (b *Broker) InitTransactional(ctx context.Context, transactionalID string, known Producer) (Producer, error) {
	op := "get a producer id for the transactional id " + transactionalID
	// The transport finds the coordinator. When it cannot, it asks any broker, whose
	// answer says that it is not the one.
	return b.producer(ctx, op, &initproducerid.Request{
		TransactionalID: transactionalID,
		// There are no transactions; the brokers want a limit for them.
		TransactionTimeoutMs: int32(time.Minute / time.Millisecond),
		ProducerID:           known.ID,
		ProducerEpoch:        known.Epoch,
	})
}
