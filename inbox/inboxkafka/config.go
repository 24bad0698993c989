// Package inboxkafka reads Kafka topics as a consumer group and gives each record to a
// processor of package inbox: the offset is committed only once the effect is.
//
// It does not use kafka-go's Reader, which cannot stop fetching one partition, hides
// rebalances, and hands out the control records of transactions.
package inboxkafka

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/segmentio/kafka-go"
)

// Config says what [Run] reads. Brokers, Group and Topics are required.
type Config struct {
	// Brokers are the addresses to begin with, host:port. Name several: while none of them
	// answers, leaders that have moved are not found.
	Brokers []string
	// Group is the consumer group. Members of a group share the partitions. A new group
	// begins at the earliest record.
	Group string
	// Topics are read by every member of the group. One that does not exist is waited for,
	// while the others are read.
	Topics []string
	// Dialer makes the connections of the group's membership: TLS, SASL. Default: plain.
	Dialer *kafka.Dialer
	// Transport makes the connections of fetching. Default: one with the TLS and SASL of
	// Dialer.
	Transport kafka.RoundTripper
	// Concurrency is how many handlers run at a time. Records of one key of one partition
	// are handled one after the other. Default 16.
	Concurrency int
	// MaxInFlight is how many records are read and not settled at most, shared evenly among
	// the partitions that the member has. A partition with that many is not fetched.
	// Default 1000.
	MaxInFlight int
	// MaxBytes is what one fetch of a partition asks for. Default 1 MiB.
	MaxBytes int
	// CommitInterval is how often offsets are committed. After a crash what was settled
	// since comes again, as duplicates. Default 1s.
	CommitInterval time.Duration
	// SessionTimeout is after how long without a sign of life the group gives the
	// partitions of a member to others (session.timeout.ms). Default 30s.
	SessionTimeout time.Duration
	// DrainTimeout is how long handlers that run may go on at a rebalance and at the end;
	// their contexts end then. It must be below SessionTimeout, since the group hears
	// nothing of the member meanwhile. Default: a third of SessionTimeout.
	DrainTimeout time.Duration
	// Observer is told of the backlog. Default: nobody.
	Observer Observer
	// Logger gets one line for each change of state. Default: slog.Default().
	Logger *slog.Logger

	close func() // ends the connections of a transport of our own
}

// Observer is told what a member of the group sees. Its method must not block.
type Observer interface {
	// Backlog is called for every partition of the member at every CommitInterval: lag is
	// how many records of it the group has still to settle, oldest the time of the first of
	// them that was read, zero when there is none. When the member loses the partition it
	// is called once more, with zeros.
	Backlog(topic string, partition int, lag int64, oldest time.Time)
}

type nobody struct{}

func (nobody) Backlog(string, int, int64, time.Time) {}

// complete fills in the defaults, and says everything that is wrong.
func (c *Config) complete() error {
	orElse(&c.Concurrency, 16)
	orElse(&c.MaxInFlight, 1000)
	orElse(&c.MaxBytes, 1<<20)
	orElse(&c.CommitInterval, time.Second)
	orElse(&c.SessionTimeout, 30*time.Second)
	orElse(&c.DrainTimeout, c.SessionTimeout/3)
	if c.Dialer == nil {
		c.Dialer = &kafka.Dialer{Timeout: 10 * time.Second, DualStack: true}
	}
	c.close = func() {}
	if c.Transport == nil {
		own := &kafka.Transport{
			Dial: c.Dialer.DialFunc, TLS: c.Dialer.TLS, SASL: c.Dialer.SASLMechanism, ClientID: c.Dialer.ClientID,
			MetadataTTL: 5 * time.Second, MetadataTopics: c.Topics, // not all that the cluster has
		}
		c.Transport, c.close = own, own.CloseIdleConnections
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default() //nolint:forbidigo // a library that was given no logger uses the program's
	}
	var errs []error
	for _, check := range []struct {
		ok   bool
		text string
	}{
		{len(c.Brokers) > 0, "Brokers is empty: give the address of at least one, host:port"},
		{c.Group != "", "Group is empty: name the consumer group"},
		{len(c.Topics) > 0, "Topics is empty"},
		{c.Concurrency > 0 && c.MaxInFlight > 0 && c.MaxBytes > 0, "Concurrency, MaxInFlight and MaxBytes must be above 0"},
		{c.MaxBytes <= math.MaxInt32, "MaxBytes must be below 2 GiB"},
		{c.CommitInterval > 0, "CommitInterval must be above 0"},
		{c.DrainTimeout > 0 && c.DrainTimeout < c.SessionTimeout, "DrainTimeout must be above 0 and below SessionTimeout"},
	} {
		if !check.ok {
			errs = append(errs, errors.New(check.text))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("inboxkafka configuration: %w", err)
	}
	return nil
}

func orElse[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}
