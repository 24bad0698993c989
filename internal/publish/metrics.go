package publish

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the publishing part of the relay's metrics. They are updated per
// batch, except commit_to_ack_seconds.
type metrics struct {
	published, bytes  *prometheus.CounterVec
	failures, retries *prometheus.CounterVec
	duration          *prometheus.HistogramVec
	commitToAck       prometheus.Histogram
	resumed, skipped  prometheus.Counter
	duplicates        prometheus.Counter
	givenUp           prometheus.Counter
}

func newMetrics(p *Publisher, register prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "cdc_relay", Name: name, Help: help}, labels)
	}
	total := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "cdc_relay", Name: name, Help: help})
	}
	gauge := func(name, help string, f func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "cdc_relay", Name: name, Help: help}, func() float64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return float64(f())
		})
	}
	m := &metrics{
		published: counter("messages_published_total", "Records acknowledged by all in-sync replicas.", "topic"),
		bytes:     counter("published_bytes_total", "Bytes of acknowledged record batches, as sent.", "topic"),
		failures:  counter("publish_failures_total", "Attempts to publish a batch that were not acknowledged.", "topic", "reason"),
		retries:   counter("publish_retries_total", "Batches that are sent again, whole or in part.", "reason"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "cdc_relay", Name: "publish_duration_seconds",
			Help:    "Time from sending a batch to its acknowledgement.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}, []string{"topic"}),
		commitToAck: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "cdc_relay", Name: "commit_to_ack_seconds",
			Help:    "Time from a row's commit in PostgreSQL to its acknowledgement by Kafka.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}),
		resumed:    total("resume_lanes_total", "Partitions in which publishing went on behind what an earlier process, or session, had published."),
		skipped:    total("resume_rows_skipped_total", "Rows that were found in their partition and not published again."),
		duplicates: total("duplicates_detected_total", "Rows that were found in their partition twice, since another process still wrote to it."),
		givenUp:    total("batches_given_up_total", "Batches whose fate the broker could not tell and the partition was read for."),
	}
	if register != nil {
		register.MustRegister(m.published, m.bytes, m.failures, m.retries, m.duration, m.commitToAck,
			m.resumed, m.skipped, m.duplicates, m.givenUp, newAge(p),
			gauge("in_flight_messages", "Rows that are queued or being published.", func() int { return p.rows }),
			gauge("in_flight_bytes", "Memory of the rows that are queued or being published.", func() int { return p.budget.used }),
		)
	}
	return m
}

// acknowledged counts a batch whose rows are still in the lane's queue.
func (m *metrics) acknowledged(l *lane, b *batch, now time.Time) {
	m.published.WithLabelValues(l.topic.name).Add(float64(b.n))
	m.bytes.WithLabelValues(l.topic.name).Add(float64(b.Size()))
	m.duration.WithLabelValues(l.topic.name).Observe(now.Sub(b.started).Seconds())
	at := now.UnixNano()
	for i := range b.n {
		if c := l.queue.at(i).commit; c != 0 {
			m.commitToAck.Observe(float64(at-c) / float64(time.Second))
		}
	}
}

func (m *metrics) failure(topic, reason string) { m.failures.WithLabelValues(topic, reason).Inc() }

func (m *metrics) retry(reason string) { m.retries.WithLabelValues(reason).Inc() }
