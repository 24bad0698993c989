package publish

import (
	"encoding/binary"
	"time"
)

// Labels of the reasons for which a row is refused. They are the values of the column
// reason of the dead letters, and of metrics.
const (
	ReasonTooLarge         = "too_large"
	ReasonInvalidRecord    = "invalid_record"
	ReasonInvalidTimestamp = "invalid_timestamp"
	ReasonInvalidTopic     = "invalid_topic"
	ReasonUnknownTopic     = "unknown_topic"
	ReasonAttempts         = "attempts"
)

// Refusal is a row that cannot be published, or not any more. What it holds is valid
// until Refused returns.
type Refusal struct {
	// Record is the row as it was published, its Headers without the position header.
	Record
	// Reason is one of the labels above.
	Reason string
	// Err is the last failure. It holds nothing of the row's contents.
	Err error
	// Attempts counts the requests that carried the row and failed for a reason that
	// passes, and the one that was refused. The first failure was at First, the last at
	// Last.
	Attempts    int
	First, Last time.Time
	// MayBePublished says that the row may be in its partition all the same: some
	// attempt ended without proof that it is not.
	MayBePublished bool
}

// refused is a row about which Refused is to be asked.
type refused struct {
	Refusal
	session *session
}

// refuse makes a row one. Its bytes are not used again as long as they may be read.
func (r *row) refuse(s *session, topic, reason string, err error) *refused {
	r.chunk.late = true
	return &refused{session: s, Refusal: Refusal{
		Record: r.record(topic), Reason: reason, Err: err, Attempts: int(r.attempts), MayBePublished: r.doubtful,
	}}
}

// failedFrom notes the first and the last failure.
func (f *refused) failedFrom(r *row, last time.Time) {
	f.First, f.Last = last, last
	if r.failed != 0 {
		f.First = time.Unix(0, r.failed)
	}
}

// record is the row as it was published.
func (r *row) record(topic string) Record {
	out := Record{
		Topic: topic, ID: r.id, Time: time.UnixMilli(r.time),
		Position: r.pos, Seq: r.seq, Letter: r.letter, Source: r.source,
	}
	if r.commit != 0 {
		out.CommitTime = time.Unix(0, r.commit)
	}
	d := bodyReader{r.body}
	out.Key, out.Value = d.bytes(), d.bytes()
	out.Headers = make([]Header, d.varint()-1) // The last one is the position.
	for i := range out.Headers {
		out.Headers[i] = Header{Name: string(d.bytes()), Value: d.bytes()}
	}
	return out
}

// bodyReader reads what appendBody has written.
type bodyReader struct{ rest []byte }

func (d *bodyReader) varint() int {
	v, n := binary.Varint(d.rest)
	d.rest = d.rest[n:]
	return int(v)
}

func (d *bodyReader) bytes() []byte {
	n := d.varint()
	if n < 0 {
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}
