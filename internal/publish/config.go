package publish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// Defaults of [Config].
const (
	DefaultMaxMessageBytes = 1 << 20
	DefaultMaxRequestBytes = 64 << 20
	DefaultInFlightBytes   = 16 << 20
	DefaultRetryInitial    = 100 * time.Millisecond
	DefaultRetryMax        = 2 * time.Second

	DefaultUnknownTopicGrace = 5 * time.Minute

	DefaultResumeMaxRecords = 100_000
	DefaultResumeMaxBytes   = 64 << 20
)

// Config says how records are published. Zero values take the defaults.
type Config struct {
	// Compression of record batches: none, gzip, snappy, lz4 or zstd. Defaults to
	// none.
	Compression string
	// MaxMessageBytes bounds one record batch, its header included, before
	// compression. A record that is larger goes alone and the broker decides. Keep
	// it at or below the topic's max.message.bytes (1048588 by default, headers
	// included), else batches are refused and split. Defaults to
	// DefaultMaxMessageBytes.
	MaxMessageBytes int
	// MaxRequestBytes is the largest record that is sent at all. Brokers cut the
	// connection of a request above socket.request.max.bytes (100 MiB), so a larger
	// record could never be told apart from a lost connection. Defaults to
	// DefaultMaxRequestBytes.
	MaxRequestBytes int
	// InFlightBytes bounds the memory of all rows that are queued or in flight. One
	// lane (partition, or topic that waits) may hold half of it: enough for a single
	// busy partition to have several full batches waiting behind the one in flight,
	// and it leaves room for the others while one is slow. A record larger than that
	// share waits until its lane holds nothing, one larger than the whole until
	// nothing at all is held. Defaults to DefaultInFlightBytes.
	InFlightBytes int
	// CreateTopics is how a missing topic is created; nil, the default, creates
	// none and lets its rows wait.
	CreateTopics *broker.TopicSpec
	// RetryInitial and RetryMax bound the pause before an attempt is repeated. It
	// doubles from one to the other, with jitter, and starts anew after a success.
	// A short maximum is what lets a lane go on within seconds after an outage.
	// Default to DefaultRetryInitial and DefaultRetryMax.
	RetryInitial, RetryMax time.Duration
	// Resume has each lane read its partition before it writes to it, and go on
	// behind what an earlier process has published. Without it all that was not
	// confirmed is published again.
	Resume bool
	// ResumeMaxRecords and ResumeMaxBytes bound what is read of one partition; what
	// lies further back is published again. Default to DefaultResumeMaxRecords and
	// DefaultResumeMaxBytes.
	ResumeMaxRecords, ResumeMaxBytes int
	// TransactionalID, if not empty, has each session raise the epoch of its producer
	// id, so that partitions refuse what an earlier process still sends once this one
	// has written to them. No transactions are used. Two relays must not share it.
	TransactionalID string
	// DeadLetter has rows that can never be published, and those out of attempts, given
	// to Refused. Without it their lane halts.
	DeadLetter bool
	// DeadLetterUnknownTopics has rows whose topic has not existed for UnknownTopicGrace
	// given to Refused. Without it they wait. The grace defaults to
	// DefaultUnknownTopicGrace.
	DeadLetterUnknownTopics bool
	UnknownTopicGrace       time.Duration
	// MaxAttempts is how many requests that carry a row may fail for a reason that
	// passes before the row is refused; 0 is no limit.
	MaxAttempts int
	// Refused takes a row that is not published. Once it returns nil the lane goes on
	// with the rows behind it; after an error, which says for certain that it was not
	// taken, the lane halts, and tries the row again. It blocks, is called from many
	// goroutines and without a lock held, and its context ends with the session, before
	// the next one begins: whoever looks up the present session must look at the context
	// after that. Required with DeadLetter.
	Refused func(ctx context.Context, r *Refusal) error
}

// Validate returns every problem of the configuration, joined.
func (c Config) Validate() error {
	var errs []error
	if _, err := c.compression(); err != nil {
		errs = append(errs, err)
	}
	for _, f := range []struct {
		name   string
		n, min int
	}{
		{"kafka.max_message_bytes", c.MaxMessageBytes, 1 << 10},
		{"kafka.max_request_bytes", c.MaxRequestBytes, 1 << 10},
		{"limits.in_flight_bytes", c.InFlightBytes, 4 * chunkBytes},
		{"resume.max_records", c.ResumeMaxRecords, 1},
		{"resume.max_bytes", c.ResumeMaxBytes, 1 << 20},
	} {
		if f.n != 0 && f.n < f.min {
			errs = append(errs, fmt.Errorf("%s: %d is below the minimum of %d", f.name, f.n, f.min))
		}
	}
	if c.RetryInitial < 0 || c.RetryMax < 0 {
		errs = append(errs, errors.New("kafka retry pauses must not be negative"))
	}
	if c.MaxAttempts < 0 || c.UnknownTopicGrace < 0 {
		errs = append(errs, errors.New("max_attempts and unknown_topic_grace must not be negative"))
	}
	if !c.DeadLetter && (c.MaxAttempts > 0 || c.DeadLetterUnknownTopics) {
		errs = append(errs, errors.New("max_attempts and on_unknown_topic: dead_letter need on_poison: dead_letter"))
	}
	return errors.Join(errs...)
}

func (c Config) compression() (compress.Compression, error) {
	switch c.Compression {
	case "", "none":
		return compress.None, nil
	case "gzip":
		return compress.Gzip, nil
	case "snappy":
		return compress.Snappy, nil
	case "lz4":
		return compress.Lz4, nil
	case "zstd":
		return compress.Zstd, nil
	}
	return 0, fmt.Errorf("kafka.compression: %q is none of none, gzip, snappy, lz4, zstd", c.Compression)
}

func (c Config) withDefaults() Config {
	def := func(n *int, d int) {
		if *n == 0 {
			*n = d
		}
	}
	def(&c.MaxMessageBytes, DefaultMaxMessageBytes)
	def(&c.MaxRequestBytes, DefaultMaxRequestBytes)
	def(&c.InFlightBytes, DefaultInFlightBytes)
	def(&c.ResumeMaxRecords, DefaultResumeMaxRecords)
	def(&c.ResumeMaxBytes, DefaultResumeMaxBytes)
	if c.RetryInitial == 0 {
		c.RetryInitial = DefaultRetryInitial
	}
	if c.RetryMax == 0 {
		c.RetryMax = DefaultRetryMax
	}
	if c.UnknownTopicGrace == 0 {
		c.UnknownTopicGrace = DefaultUnknownTopicGrace
	}
	return c
}
