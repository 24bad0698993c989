package main

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/relay"
)

// Every metric of the relay is described on the operations page.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(readBuild().metric())
	kafka, err := broker.Open(broker.Config{Brokers: []string{"127.0.0.1:1", "127.0.0.1:2"}}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer kafka.Close()
	c := config.Default()
	sending := c.Publish()
	sending.Refused = func(context.Context, *publish.Refusal) error { return nil }
	publisher, err := publish.New(sending, kafka, log, metrics)
	if err != nil {
		t.Fatal(err)
	}
	mapper, err := record.New(c.Record())
	if err != nil {
		t.Fatal(err)
	}
	relay.New(relay.Config{Spec: catalog.Spec{Slot: "s"}}, mapper, publisher, kafka, log, metrics)
	names := make(chan *prometheus.Desc)
	go func() {
		defer close(names)
		metrics.Describe(names)
	}()
	seen := 0
	for desc := range names {
		_, rest, _ := strings.Cut(desc.String(), `fqName: "cdc_relay_`)
		name, _, _ := strings.Cut(rest, `"`)
		seen++
		if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), "`"+name+"{") {
			t.Errorf("metric cdc_relay_%s is not in docs/operations.md", name)
		}
	}
	if seen < 25 {
		t.Errorf("only %d metrics are registered", seen)
	}
}
