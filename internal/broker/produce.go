package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// acksAll asks for the acknowledgement of all in-sync replicas, always.
const acksAll = -1

// Batch is one encoded record batch (message format 2). It may be written several
// times, also after Produce has returned with an error, and must give the same
// bytes each time.
type Batch interface {
	io.WriterTo
	// Size is the number of bytes that WriteTo writes.
	Size() int
}

// Produced is a broker's answer to one batch.
type Produced struct {
	// Code is the Kafka error code of the partition, 0 for success.
	Code int
	// Message is the broker's text beside the code, often empty.
	Message string
	// BaseOffset is the offset of the batch's first record when Code is 0.
	BaseOffset int64
	// RecordErrors names the records that the broker refused, by their index in
	// the batch, where it says so.
	RecordErrors []RecordError
}

// RecordError is one refused record of a batch.
type RecordError struct {
	Index   int
	Message string
}

// Err is the answer's code as an error, nil for success.
func (p Produced) Err() error {
	switch {
	case p.Code == 0:
		return nil
	case p.Message != "":
		return fmt.Errorf("%w: %s", kafka.Error(p.Code), p.Message)
	}
	return kafka.Error(p.Code)
}

// Produce sends one batch to a partition's leader with acks=all. A refusal by the
// broker is in Produced.Code; the error is for everything that gave no answer, see
// MayHaveBeenWritten.
func (b *Broker) Produce(ctx context.Context, topic string, partition int, batch Batch) (Produced, error) {
	op := func() string { return fmt.Sprintf("produce to %s[%d]", topic, partition) }
	r, err := b.roundTrip(ctx, &rawproduce.Request{
		Acks: acksAll,
		// Left at zero the broker would give up at once.
		Timeout: int32(b.cfg.RequestTimeout / 2 / time.Millisecond),
		Topics: []rawproduce.RequestTopic{{
			Topic: topic,
			Partitions: []rawproduce.RequestPartition{{
				Partition: int32(partition),
				RecordSet: protocol.RawRecordSet{Reader: recordSet{batch}},
			}},
		}},
	})
	if err != nil {
		return Produced{}, b.fail(op(), err)
	}
	res, ok := r.(*produce.Response)
	if !ok || len(res.Topics) != 1 || len(res.Topics[0].Partitions) != 1 {
		return Produced{}, b.fail(op(), errors.New("the answer does not name the partition"))
	}
	p := &res.Topics[0].Partitions[0]
	out := Produced{Code: int(p.ErrorCode), Message: p.ErrorMessage, BaseOffset: p.BaseOffset}
	for _, e := range p.RecordErrors {
		out.RecordErrors = append(out.RecordErrors, RecordError{Index: int(e.BatchIndex), Message: e.BatchIndexErrorMessage})
	}
	return out, nil
}

// recordSet is a batch as a field of the produce request: a length, then the bytes.
type recordSet struct{ batch Batch }

func (s recordSet) WriteTo(w io.Writer) (int64, error) {
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(s.batch.Size()))
	n, err := w.Write(size[:])
	if err != nil {
		return int64(n), err
	}
	m, err := s.batch.WriteTo(w)
	return int64(n) + m, err
}

// Read makes recordSet the io.Reader that kafka-go asks for. It copies with
// io.Copy, which prefers WriteTo.
func (s recordSet) Read([]byte) (int, error) {
	return 0, errors.New("read of a record set: use WriteTo")
}

// Producer is an idempotent producer's identity.
type Producer struct {
	ID    int64
	Epoch int16
}

// initProducerRequest is kafka-go's request without its Transaction method, which
// would have the transport look up the coordinator of an empty transactional id
// first, and so create the cluster's transaction topic. Without a transactional id
// any broker hands out ids.
type initProducerRequest initproducerid.Request

// InitProducer asks for a new producer id, without transactional id. A broker that
// has just started answers with an error for a while: call it again until it
// succeeds. The id is never negative when the error is nil.
func (b *Broker) InitProducer(ctx context.Context) (Producer, error) {
	const op = "get a producer id"
	return b.producer(ctx, op, &initProducerRequest{
		TransactionTimeoutMs: int32(time.Minute / time.Millisecond),
		ProducerID:           -1, // Zero would name the producer 0.
		ProducerEpoch:        -1,
	})
}

// producer sends a request for a producer id.
func (b *Broker) producer(ctx context.Context, op string, request protocol.Message) (Producer, error) {
	r, err := b.roundTrip(ctx, request)
	if err != nil {
		return Producer{}, b.fail(op, err)
	}
	p, err := producerOf(r)
	if err != nil {
		return Producer{}, b.fail(op, err)
	}
	return p, nil
}

// producerOf reads the answer to a request for a producer id. The id is not negative
// when the error is nil.
func producerOf(r protocol.Message) (Producer, error) {
	res, ok := r.(*initproducerid.Response)
	switch {
	case !ok:
		return Producer{}, fmt.Errorf("unexpected answer %T", r)
	case res.ErrorCode != 0:
		return Producer{}, kafka.Error(res.ErrorCode)
	case res.ProducerID < 0:
		return Producer{}, fmt.Errorf("the broker answered with id %d", res.ProducerID)
	}
	return Producer{ID: res.ProducerID, Epoch: res.ProducerEpoch}, nil
}

// ApiKey implements protocol.Message.
//
//nolint:revive // kafka-go's interface spells the name.
func (r *initProducerRequest) ApiKey() protocol.ApiKey { return protocol.InitProducerId }

// Broker implements protocol.BrokerMessage: any broker of the cluster will do, at
// random. The bootstrap addresses would not: one of them may be dead.
func (r *initProducerRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	for _, b := range cluster.Brokers {
		return b, nil
	}
	return protocol.Broker{ID: -1}, nil
}
