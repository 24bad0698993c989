package publish

import (
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// maxShrunkRows ends the search for a refused row.
const maxShrunkRows = 1 << 16

// shrink has the next batch hold fewer rows after a refusal of one among several.
func (l *lane) shrink(b *batch, o outcome, res broker.Produced) {
	named := false
	for _, e := range res.RecordErrors {
		if e.Index >= 0 && e.Index < b.n {
			l.queue.at(e.Index).alone, named = true, true
		}
	}
	switch {
	case named: // The rows before the first one, then that one alone, and so on.
	case tooLarge(res.Code):
		l.maxBytes = b.Size() / 2
		if b.payload != nil {
			l.maxBytes = (headerBytes + b.records) / 2
		}
	default:
		l.maxRows = b.n / 2
	}
	l.p.metrics.retry(o.reason)
	l.release()
}

// tooLarge reports whether the code is about the size of the batch.
func tooLarge(code int) bool {
	return kafka.Error(code) == kafka.MessageSizeTooLarge || kafka.Error(code) == kafka.RecordListTooLarge
}
