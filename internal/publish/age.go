package publish

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// newAge is the metric that says how far publishing is behind.
func newAge(p *Publisher) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "cdc_relay", Name: "oldest_unacknowledged_seconds",
		Help: "How long ago the oldest row that is read and not acknowledged was committed; 0 while there is none.",
	}, func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.age(time.Now()).Seconds()
	})
}

// age is how long ago the oldest row that is queued or being published was committed.
// It is never negative, though the server's clock may be ahead. Rows of one queue are
// in commit order, so only the first of each is looked at. The mutex is held.
func (p *Publisher) age(now time.Time) time.Duration {
	oldest := now
	look := func(q *queue) {
		if q.len() == 0 || q.at(0).commit == 0 {
			return
		}
		if c := time.Unix(0, q.at(0).commit); c.Before(oldest) {
			oldest = c
		}
	}
	for _, t := range p.topics {
		look(&t.queue)
		for _, l := range t.lanes {
			look(&l.queue)
		}
	}
	return now.Sub(oldest)
}
