package inboxprometheus

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// derived are the metrics that are made out of the last counts at each scrape. What is
// not known, or the oldest of nothing, has no series.
type derived struct {
	dead, parkedKeys, parkedOldest, oldest *prometheus.Desc
	backlogOldest, lag                     *prometheus.Desc
}

func newDerived(consumer prometheus.Labels) derived {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, consumer)
	}
	return derived{
		dead:          desc("dead_letters", "Dead letters that wait for a decision."),
		parkedKeys:    desc("parked_keys", "Keys (of a topic) of which messages are parked."),
		parkedOldest:  desc("parked_oldest_timestamp_seconds", "When the oldest parked message was parked."),
		oldest:        desc("oldest_timestamp_seconds", "When the oldest message that is still remembered was settled; pruning moves it."),
		backlogOldest: desc("backlog_oldest_timestamp_seconds", "Time of the oldest record that is not settled.", "topic"),
		lag:           desc("lag_records", "Records between the committed offset and the end of the partition.", "topic", "partition"),
	}
}

func (d *derived) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.dead, d.parkedKeys, d.parkedOldest, d.oldest, d.backlogOldest, d.lag}
}

func (c *Collector) own() []prometheus.Collector {
	return []prometheus.Collector{c.deliveries, c.duration, c.retries, c.gaps, c.pruned, c.breaker, c.away}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, own := range c.own() {
		own.Describe(out)
	}
	for _, desc := range c.derived.all() {
		out <- desc
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	for _, own := range c.own() {
		own.Collect(out)
	}
	for _, m := range c.derivedMetrics() {
		out <- m
	}
}

func (c *Collector) derivedMetrics() []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	var metrics []prometheus.Metric
	add := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics = append(metrics, prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...))
	}
	addTime := func(desc *prometheus.Desc, at time.Time, labels ...string) {
		if !at.IsZero() {
			add(desc, seconds(at), labels...)
		}
	}
	d := &c.derived
	if n := c.counts; c.counted {
		add(d.dead, float64(n.DeadLetters))
		add(d.parkedKeys, float64(n.ParkedKeys))
		addTime(d.parkedOldest, n.OldestParked)
		addTime(d.oldest, n.OldestSettled)
	}
	oldest := make(map[string]time.Time)
	for p, b := range c.backlog {
		add(d.lag, float64(b.lag), p.topic, strconv.Itoa(p.index))
		if at := oldest[p.topic]; !b.oldest.IsZero() && (at.IsZero() || b.oldest.Before(at)) {
			oldest[p.topic] = b.oldest
		}
	}
	for topic, at := range oldest {
		addTime(d.backlogOldest, at, topic)
	}
	return metrics
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / float64(time.Second) }
