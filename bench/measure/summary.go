package measure

import (
	"fmt"
	"slices"
	"time"
)

func (r *DrainRun) finish(starting, draining time.Duration) {
	events := float64(r.events)
	r.StartSeconds, r.Seconds = starting.Seconds(), draining.Seconds()
	r.EventsPerSecond = events / draining.Seconds()
	r.CPUMicroseconds = r.cpu.Seconds() * 1e6 / events
	r.WalsenderMicro = r.cpuOfWalsender.Seconds() * 1e6 / events
	r.BrokerMicro = r.cpuOfBroker.Seconds() * 1e6 / events
}

// String is a round in one line.
func (r Round) String() string {
	line := "relay " + r.Relay.String()
	if r.Reference != nil {
		line += fmt.Sprintf("; pg_recvlogical %s; ratio %.2f", *r.Reference, r.ratio())
	}
	return line
}

// String is a run in one line.
func (r DrainRun) String() string {
	return fmt.Sprintf("%.0f events/s, %.2f µs (walsender %.2f µs, broker %.2f µs), %.0f MiB",
		r.EventsPerSecond, r.CPUMicroseconds, r.WalsenderMicro, r.BrokerMicro, float64(r.PeakBytes)/(1<<20))
}

func (r Round) ratio() float64 { return r.Relay.EventsPerSecond / r.Reference.EventsPerSecond }

// summarise takes the medians of the rounds.
func (d *Drain) summarise() {
	var relay, reference []DrainRun
	var ratios []float64
	for _, r := range d.Rounds {
		relay = append(relay, r.Relay)
		if r.Reference != nil {
			reference = append(reference, *r.Reference)
			ratios = append(ratios, r.ratio())
		}
	}
	d.Relay = medianRun(relay)
	if len(reference) == 0 {
		return
	}
	m := medianRun(reference)
	d.Reference, d.Ratio = &m, median(ratios)
	d.RatioRange = [2]float64{slices.Min(ratios), slices.Max(ratios)}
}

// medianRun is the median of each figure; of the memory it is the highest.
func medianRun(runs []DrainRun) DrainRun {
	of := func(field func(DrainRun) float64) float64 {
		values := make([]float64, len(runs))
		for i, r := range runs {
			values[i] = field(r)
		}
		return median(values)
	}
	m := DrainRun{
		StartSeconds:    of(func(r DrainRun) float64 { return r.StartSeconds }),
		Seconds:         of(func(r DrainRun) float64 { return r.Seconds }),
		EventsPerSecond: of(func(r DrainRun) float64 { return r.EventsPerSecond }),
		CPUMicroseconds: of(func(r DrainRun) float64 { return r.CPUMicroseconds }),
		WalsenderMicro:  of(func(r DrainRun) float64 { return r.WalsenderMicro }),
		BrokerMicro:     of(func(r DrainRun) float64 { return r.BrokerMicro }),
	}
	for _, r := range runs {
		m.PeakBytes = max(m.PeakBytes, r.PeakBytes)
	}
	return m
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quantile returns the smallest value that at least the share q of the sorted values does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
