package publish

import (
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// maxShrunkRows ends the search for a refused row.
const maxShrunkRows = 1 << 16

// shrink has the next batch hold fewer rows after a refusal of one among several.
func (l *lane) shrink(b *batch, o outcome, res broker.Produced) {
	if first := firstRefused(res, b.n); first >= 0 {
		// The rows before the first refused one, then that one alone.
		l.maxRows = max(first, 1)
	} else if tooLarge(res.Code) {
		l.maxBytes = b.Size() / 2
		if b.payload != nil {
			l.maxBytes = (headerBytes + b.records) / 2
		}
	} else {
		l.maxRows = b.n / 2
	}
	l.p.metrics.retry(o.reason)
	l.release()
}

// tooLarge reports whether the code is about the size of the batch.
func tooLarge(code int) bool {
	return kafka.Error(code) == kafka.MessageSizeTooLarge || kafka.Error(code) == kafka.RecordListTooLarge
}

// firstRefused is the index of the first record that the answer names, -1 if it
// names none of n.
func firstRefused(res broker.Produced, n int) int {
	first := -1
	for _, e := range res.RecordErrors {
		if e.Index >= 0 && e.Index < n && (first < 0 || e.Index < first) {
			first = e.Index
		}
	}
	return first
}
