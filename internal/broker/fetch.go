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
	"github.com/segmentio/kafka-go/protocol/fetch"
)

const (
	// fetchVersion is the version of the Fetch request in use: the first one in which
	// brokers hand out batches compressed with zstd (Kafka 2.1). Later ones add
	// nothing that is needed here.
	fetchVersion = 10
	// maxFetched bounds an answer. A batch came in one produce request, which brokers
	// limit to 100 MiB by default, and one is the least that an answer holds.
	maxFetched = 1 << 30
)

// Fetch reads a partition from offset on, up to the high watermark and whatever the
// state of transactions, about maxBytes but at least one batch. It calls each for
// every data record at or after offset, in order, with the value of the record's last
// header of that name, cut to 4 KiB; nil says that there is none. The value is valid
// until each returns. Control records (of transactions) are never handed out.
//
// It returns the next offset to read, which is the given one only at the high
// watermark: compacted gaps, control records and batches without any record left are
// stepped over. A broker that throttles is waited for. Code 1 says that there is no
// such offset, below the log start or beyond the end. After an error, what each was
// told is not complete.
func (b *Broker) Fetch(ctx context.Context, topic string, partition int, offset int64, maxBytes int, header string, each func(offset int64, value []byte)) (next int64, err error) {
	op := func() string { return fmt.Sprintf("read %s[%d] from offset %d", topic, partition, offset) }
	b.follow(topic)
	for {
		r, err := b.roundTrip(ctx, &fetchRequest{
			clientID: b.cfg.ClientID, topic: topic,
			partition: fetch.RequestPartition{
				Partition: int32(partition), CurrentLeaderEpoch: -1,
				FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: int32(maxBytes),
			},
		})
		if err != nil {
			return offset, b.fail(op(), err)
		}
		res, ok := r.(*fetched)
		if !ok {
			return offset, b.fail(op(), fmt.Errorf("unexpected answer %T", r))
		}
		if res.throttle > 0 && !res.answered {
			if err := pause(ctx, res.throttle); err != nil {
				return offset, b.fail(op(), err)
			}
			continue
		}
		if next, err = res.scan(offset, header, each); err != nil {
			return offset, b.fail(op(), err)
		}
		return next, nil
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fetchRequest is a fetch of one partition whose answer is read here. kafka-go's
// reader drops where a batch ends: behind a batch that compaction has emptied, or
// whose last records are gone, there would be no next offset.
type fetchRequest struct {
	clientID  string
	topic     string
	partition fetch.RequestPartition
	version   int16 // the highest that broker and kafka-go have in common
}

// ApiKey implements protocol.Message.
//
//nolint:revive // kafka-go's interface spells the name.
func (r *fetchRequest) ApiKey() protocol.ApiKey { return protocol.Fetch }

// Broker implements protocol.BrokerMessage: the partition's leader.
func (r *fetchRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	return leader(cluster, r.topic, r.partition.Partition)
}

// Required implements protocol.RawExchanger.
func (r *fetchRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.Fetch]
	return true
}

// RawExchange implements protocol.RawExchanger.
func (r *fetchRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if r.version < fetchVersion {
		return nil, fmt.Errorf("%w: it needs Kafka 2.1", kafka.UnsupportedVersion)
	}
	const correlation = 1 // A connection carries one request at a time.
	err := protocol.WriteRequest(rw, fetchVersion, correlation, r.clientID, &fetch.Request{
		ReplicaID: -1, MaxBytes: r.partition.PartitionMaxBytes,
		SessionEpoch: -1, // No fetch session.
		Topics:       []fetch.RequestTopic{{Topic: r.topic, Partitions: []fetch.RequestPartition{r.partition}}},
	})
	if err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[:])) - 4
	if id := binary.BigEndian.Uint32(head[4:]); id != correlation || size < 0 || size > maxFetched {
		return nil, fmt.Errorf("unexpected answer of %d bytes to request %d", size, id)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(rw, body); err != nil {
		return nil, err
	}
	return parseFetched(body)
}

// fetched is the answer to a fetchRequest.
type fetched struct {
	throttle time.Duration
	answered bool // it names the partition; a throttled one does not
	code     kafka.Error
	// highWatermark bounds what may be read.
	highWatermark int64
	batches       []byte
}

// ApiKey implements protocol.Message.
//
//nolint:revive // kafka-go's interface spells the name.
func (f *fetched) ApiKey() protocol.ApiKey { return protocol.Fetch }

// parseFetched decodes the answer of version 10.
func parseFetched(body []byte) (*fetched, error) {
	w := wire{body}
	f := &fetched{throttle: time.Duration(w.int32()) * time.Millisecond}
	f.code = kafka.Error(w.int16())
	w.int32() // The fetch session.
	if w.int32() > 0 {
		w.take(int(w.int16())) // The topic.
		if w.int32() > 0 {
			w.int32() // The partition.
			if code := kafka.Error(w.int16()); code != 0 {
				f.code = code
			}
			f.highWatermark = w.int64()
			w.int64()                                  // The last stable offset.
			w.int64()                                  // The log start offset.
			w.take(16 * int(max(0, w.int32())))        // Aborted transactions.
			f.batches = w.take(int(max(0, w.int32()))) // -1 is none.
			f.answered = true
		}
	}
	if w.left == nil {
		return nil, errors.New("the answer is too short")
	}
	return f, nil
}

// scan hands out the records, see Fetch.
func (f *fetched) scan(offset int64, header string, each func(int64, []byte)) (next int64, err error) {
	switch {
	case f.code != 0:
		return offset, f.code
	case !f.answered:
		return offset, errors.New("the answer does not name the partition")
	}
	if next, err = scanBatches(f.batches, offset, header, each); err != nil {
		return offset, err
	}
	if next == offset && offset < f.highWatermark {
		return offset, fmt.Errorf("the broker returned nothing below the high watermark %d", f.highWatermark)
	}
	return next, nil
}

// wire reads big-endian fields. Once they do not suffice it gives zeros, and left is
// nil.
type wire struct{ left []byte }

func (w *wire) take(n int) []byte {
	if w.left == nil || n < 0 || n > len(w.left) {
		w.left = nil
		return nil
	}
	out := w.left[:n]
	w.left = w.left[n:]
	return out
}

func (w *wire) int16() int16 {
	if b := w.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (w *wire) int32() int32 {
	if b := w.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (w *wire) int64() int64 {
	if b := w.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}
