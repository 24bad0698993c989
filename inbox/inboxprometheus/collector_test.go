package inboxprometheus_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/inbox/inboxprometheus"
)

// One collector is the observer of both.
var (
	_ inbox.Observer      = (*inboxprometheus.Collector)(nil)
	_ inboxkafka.Observer = (*inboxprometheus.Collector)(nil)
)

// scrape returns every series as "name{labels}" with its value; of a histogram the count.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := fmt.Sprintf("%s{%s}", strings.TrimPrefix(family.GetName(), "cdc_relay_inbox_"), strings.Join(labels, ","))
			switch {
			case m.GetCounter() != nil:
				series[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				series[name] = m.GetGauge().GetValue()
			case m.GetHistogram() != nil:
				series[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return series
}

func want(t *testing.T, got, want map[string]float64) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// fresh are the series of a consumer of which nothing is known yet.
func fresh(consumer string) map[string]float64 {
	label := "{consumer=" + consumer + "}"
	series := map[string]float64{
		"handler_duration_seconds" + label: 0, "retries_total" + label: 0, "sequence_gaps_total" + label: 0,
		"pruned_total" + label: 0, "breaker_open" + label: 0, "database_away" + label: 0,
	}
	for _, outcome := range []string{"processed", "duplicate", "retry", "dead_lettered", "parked", "stale"} {
		series["deliveries_total{consumer="+consumer+",outcome="+outcome+"}"] = 0
	}
	return series
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	shipping, billing := inboxprometheus.New("shipping"), inboxprometheus.New("billing")
	registry.MustRegister(shipping, billing)
	expected := fresh("shipping")
	maps.Copy(expected, fresh("billing"))
	want(t, scrape(t, registry), expected)

	delivered := func(d inbox.Delivery, times int) {
		for range times {
			shipping.Delivered(d)
		}
	}
	failed := errors.New("no")
	delivered(inbox.Delivery{Outcome: inbox.Processed, Duration: time.Millisecond}, 1)
	delivered(inbox.Delivery{Outcome: inbox.Duplicate}, 2)
	delivered(inbox.Delivery{Outcome: inbox.Retry, Duration: time.Millisecond, Err: failed}, 3)
	delivered(inbox.Delivery{Outcome: inbox.Retry, Gap: true}, 1)
	delivered(inbox.Delivery{Outcome: inbox.DeadLettered, Duration: time.Millisecond, Err: failed, Reason: "permanent"}, 5)
	delivered(inbox.Delivery{Outcome: inbox.Parked, Reason: "behind"}, 6)
	delivered(inbox.Delivery{Outcome: inbox.Parked, Gap: true, Reason: "gap"}, 1)
	delivered(inbox.Delivery{Outcome: inbox.Stale}, 8)
	shipping.Pruned(1000)
	shipping.Pruned(0)
	shipping.Changed(inbox.State{DatabaseAway: true, Err: failed})
	shipping.Counted(inbox.Counts{
		DeadLetters: 5, Parked: 7, ParkedKeys: 2, Due: 1, Attempts: 1,
		OldestParked: time.Unix(100, 500_000_000), OldestSettled: time.Unix(50, 0),
	})
	shipping.Backlog("orders", 0, 10, time.Unix(70, 0))
	shipping.Backlog("orders", 1, 3, time.Unix(60, 0))
	shipping.Backlog("orders", 2, 0, time.Time{})
	shipping.Backlog("idle", 0, 0, time.Time{})
	maps.Copy(expected, map[string]float64{
		"deliveries_total{consumer=shipping,outcome=processed}":     1,
		"deliveries_total{consumer=shipping,outcome=duplicate}":     2,
		"deliveries_total{consumer=shipping,outcome=retry}":         4,
		"deliveries_total{consumer=shipping,outcome=dead_lettered}": 5,
		"deliveries_total{consumer=shipping,outcome=parked}":        7,
		"deliveries_total{consumer=shipping,outcome=stale}":         8,

		"handler_duration_seconds{consumer=shipping}":                      9,
		"retries_total{consumer=shipping}":                                 3, // one that waits has not failed
		"sequence_gaps_total{consumer=shipping}":                           2,
		"pruned_total{consumer=shipping}":                                  1000,
		"database_away{consumer=shipping}":                                 1,
		"dead_letters{consumer=shipping}":                                  5,
		"parked_keys{consumer=shipping}":                                   2,
		"parked_oldest_timestamp_seconds{consumer=shipping}":               100.5,
		"oldest_timestamp_seconds{consumer=shipping}":                      50,
		"lag_records{consumer=shipping,partition=0,topic=orders}":          10,
		"lag_records{consumer=shipping,partition=1,topic=orders}":          3,
		"lag_records{consumer=shipping,partition=2,topic=orders}":          0,
		"lag_records{consumer=shipping,partition=0,topic=idle}":            0,
		"backlog_oldest_timestamp_seconds{consumer=shipping,topic=orders}": 60,
	})
	want(t, scrape(t, registry), expected)

	// What is over has no series, and what has ended is 0.
	shipping.Changed(inbox.State{BreakerOpen: true, Err: failed})
	shipping.Counted(inbox.Counts{})
	shipping.Backlog("orders", 0, 0, time.Time{})
	shipping.Backlog("orders", 1, 0, time.Time{})
	maps.Copy(expected, map[string]float64{
		"database_away{consumer=shipping}": 0, "breaker_open{consumer=shipping}": 1,
		"dead_letters{consumer=shipping}": 0, "parked_keys{consumer=shipping}": 0,
		"lag_records{consumer=shipping,partition=0,topic=orders}": 0,
		"lag_records{consumer=shipping,partition=1,topic=orders}": 0,
	})
	for _, gone := range []string{"parked_oldest_timestamp_seconds{consumer=shipping}", "oldest_timestamp_seconds{consumer=shipping}", "backlog_oldest_timestamp_seconds{consumer=shipping,topic=orders}"} {
		delete(expected, gone)
	}
	want(t, scrape(t, registry), expected)
}
