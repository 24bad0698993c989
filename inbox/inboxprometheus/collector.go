// Package inboxprometheus turns what an [inbox.Processor] tells its observer into
// Prometheus metrics:
//
//	metrics := inboxprometheus.New("shipping")
//	registry.MustRegister(metrics)
//	processor, err := inbox.New(inbox.Config{Consumer: "shipping", Observer: metrics, …})
//
// The metrics begin with cdc_relay_inbox_ and have the label consumer. Names of
// topics are labels of the two that describe the backlog; nothing that a message holds
// is a label.
package inboxprometheus

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/inbox"
)

const namespace = "cdc_relay_inbox"

// Collector is the observer of one consumer, and a collector to register. Give it to
// [inbox.Config] as Observer, and to the configuration of inboxkafka as well for the
// metrics of the backlog. Several consumers of a process have one each, in one registry.
// It is safe for concurrent use.
type Collector struct {
	inbox.NopObserver

	deliveries *prometheus.CounterVec
	duration   prometheus.Histogram
	retries    prometheus.Counter
	gaps       prometheus.Counter
	pruned     prometheus.Counter
	breaker    prometheus.Gauge
	away       prometheus.Gauge
	derived    derived

	mu      sync.Mutex
	counted bool
	counts  inbox.Counts
	backlog map[partition]backlog
}

type partition struct {
	topic string
	index int
}

type backlog struct {
	lag    int64
	oldest time.Time
}

// New returns the collector of a consumer.
func New(consumer string) *Collector {
	labels := prometheus.Labels{"consumer": consumer}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help, ConstLabels: labels})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help, ConstLabels: labels})
	}
	c := &Collector{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "deliveries_total", ConstLabels: labels,
			Help: "Deliveries by what became of the message.",
		}, []string{"outcome"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "handler_duration_seconds", ConstLabels: labels,
			Help: "Time that the handler took, successful or not.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
		retries: counter("retries_total", "Deliveries that failed and are tried again. Those of the relay are cdc_relay_publish_retries_total."),
		gaps:    counter("sequence_gaps_total", "Deliveries that found an earlier version of their key missing."),
		pruned:  counter("pruned_total", "Settled messages that were deleted after the retention."),
		breaker: gauge("breaker_open", "1 while everything fails and one message at a time is tried."),
		away:    gauge("database_away", "1 while the consumer's database cannot be used."),
		derived: newDerived(labels),
		backlog: make(map[partition]backlog),
	}
	for _, outcome := range outcomes {
		c.deliveries.WithLabelValues(outcome.String())
	}
	return c
}

// outcomes are those that exist; each has a series from the start, so that its first
// increase is seen as one.
var outcomes = [...]inbox.Outcome{
	inbox.Processed, inbox.Duplicate, inbox.Retry, inbox.DeadLettered, inbox.Parked, inbox.Stale,
}

// Delivered implements [inbox.Observer].
func (c *Collector) Delivered(d inbox.Delivery) {
	c.deliveries.WithLabelValues(d.Outcome.String()).Inc()
	if d.Duration > 0 {
		c.duration.Observe(d.Duration.Seconds())
	}
	if d.Outcome == inbox.Retry && !d.Gap {
		c.retries.Inc()
	}
	if d.Gap {
		c.gaps.Inc()
	}
}

// Changed implements [inbox.Observer].
func (c *Collector) Changed(s inbox.State) {
	c.breaker.Set(number(s.BreakerOpen))
	c.away.Set(number(s.DatabaseAway))
}

// Counted implements [inbox.Observer].
func (c *Collector) Counted(n inbox.Counts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts, c.counted = n, true
}

// Pruned implements [inbox.Observer].
func (c *Collector) Pruned(n int64) { c.pruned.Add(float64(n)) }

// Backlog is the method of an inboxkafka observer: how many records of the partition the
// group has still to settle, and the time of the oldest of them; zero when there is none.
func (c *Collector) Backlog(topic string, index int, lag int64, oldest time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.backlog[partition{topic, index}] = backlog{lag, oldest}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
