// Package measure runs the relay's command on real PostgreSQL and real Kafka and measures it from outside: how fast it
// drains a backlog beside pg_recvlogical, how long a committed row takes to a consumer, and how much memory one huge
// transaction costs while Kafka is slow. It also measures what the claim of package inbox costs a consumer.
//
// It needs Linux (/proc tells CPU time and peak memory) and Java for Kafka.
package measure

import (
	"context"
	"time"
)

// Options say what to measure, and how much of it. The zero value of a size is its default.
type Options struct {
	// Relay is the command to measure. Default: the one of this checkout, built as for a release.
	Relay string
	// Rounds is how often each drain is repeated; the median counts. Default 3.
	Rounds int
	// SingleRows and BatchRows are the sizes of the backlogs of one-row and of 100-row transactions. Defaults 300,000
	// and 600,000.
	SingleRows, BatchRows int
	// Rates are the events a second at which latency is measured. Default 10 and 200.
	Rates []int
	// Duration is how long each rate is held. Default 20 s.
	Duration time.Duration
	// MemoryRows is the size of the one huge transaction, of rows with 1 KB of payload. Default 1,000,000.
	MemoryRows int
	// ClaimMessages is how many messages a consumer handles in each run with or without the claim. Default 20,000.
	ClaimMessages int
	// Progress is told in a line what is going on. Default: nobody is.
	Progress func(line string)
}

func (o Options) withDefaults() Options {
	for _, size := range []struct {
		value    *int
		standard int
	}{{&o.Rounds, 3}, {&o.SingleRows, 300_000}, {&o.BatchRows, 600_000}, {&o.MemoryRows, 1_000_000}, {&o.ClaimMessages, 20_000}} {
		if *size.value == 0 {
			*size.value = size.standard
		}
	}
	if len(o.Rates) == 0 {
		o.Rates = []int{10, 200}
	}
	if o.Duration == 0 {
		o.Duration = 20 * time.Second
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o
}

// pause waits, or returns early with the reason when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
