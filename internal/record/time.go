package record

import (
	"bytes"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/wal"
)

const (
	// maxAge is how old a record may be. Brokers delete by record time, so one that is
	// older than the topic's retention is gone minutes after it was acknowledged.
	maxAge = 24 * time.Hour
	// maxAhead is how far ahead of our clock a record may be. Brokers refuse what is
	// more than an hour in the future (message.timestamp.after.max.ms).
	maxAhead = time.Minute
)

// recordTime is the time of the record for a row that was written at t: the time of
// publishing where t would harm the record.
func recordTime(t, now time.Time) time.Time {
	if t.Before(now.Add(-maxAge)) || t.After(now.Add(maxAhead)) {
		return now
	}
	return t
}

// Time is the time to publish a record with that was to have the time t.
func Time(t, now time.Time) time.Time { return recordTime(t, now) }

// createdAt returns the time that the row itself claims, if that was asked for and
// can be read, else the time of the commit.
func (r *row) createdAt(commit time.Time) time.Time {
	i := r.table.createdAt
	if i == absent || r.values[i].Format != wal.FormatText {
		return commit
	}
	if t, ok := parseTime(r.values[i].Data, r.table.relation.Columns[i].TypeOID); ok {
		return t
	}
	return commit
}

// parseTime reads a timestamp in PostgreSQL's ISO style; one without a zone is UTC.
// Infinity, years before Christ and other types have no record time.
func parseTime(text []byte, typeOID uint32) (time.Time, bool) {
	layout := time.DateTime
	switch typeOID {
	case oidTimestamp:
	case oidTimestamptz:
		// The offset is as long as it must be: +00, +05:30 or +00:19:32.
		switch zone := text[max(0, bytes.LastIndexAny(text, "+-")):]; len(zone) {
		case len("+00:19:32"):
			layout += "-07:00:00"
		case len("+05:30"):
			layout += "-07:00"
		default:
			layout += "-07"
		}
	default:
		return time.Time{}, false
	}
	t, err := time.Parse(layout, string(text))
	return t, err == nil
}
