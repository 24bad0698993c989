package publish_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

type batchHeader struct {
	producer int64
	epoch    int16
	sequence int32
	count    int
}

// number names the sequence number of the i-th record.
func (h batchHeader) number(i int) string {
	return fmt.Sprint(h.producer, "/", h.epoch, "/", h.sequence+int32(i))
}

func readHeader(raw []byte) batchHeader {
	return batchHeader{
		producer: int64(binary.BigEndian.Uint64(raw[43:])),
		epoch:    int16(binary.BigEndian.Uint16(raw[51:])),
		sequence: int32(binary.BigEndian.Uint32(raw[53:])),
		count:    int(binary.BigEndian.Uint32(raw[57:])),
	}
}

// readRecords decodes a batch with kafka-go's reader, which checks the checksum.
func readRecords(raw []byte) ([]modelRecord, error) {
	set := binary.BigEndian.AppendUint32(nil, uint32(len(raw)))
	var rs protocol.RecordSet
	if _, err := rs.ReadFrom(bytes.NewReader(append(set, raw...))); err != nil {
		return nil, err
	}
	var out []modelRecord
	for {
		r, err := rs.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		rec := modelRecord{time: r.Time}
		if rec.key, err = text(r.Key); err != nil {
			return out, err
		}
		if rec.value, err = text(r.Value); err != nil {
			return out, err
		}
		for _, h := range r.Headers {
			if h.Key == position.Header {
				rec.header = bytes.Clone(h.Value)
				if rec.stamp, err = position.Parse(h.Value); err != nil {
					return out, err
				}
			}
		}
		out = append(out, rec)
	}
}

func text(b protocol.Bytes) (string, error) {
	if b == nil {
		return "<null>", nil
	}
	data, err := protocol.ReadAll(b)
	return string(data), err
}
