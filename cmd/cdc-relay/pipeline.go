package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/admin"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/relay"
)

// runOptions are the switches of one run.
type runOptions struct {
	create  bool
	once    bool
	timeout time.Duration
}

// pipeline puts the packages together and runs them until ctx ends.
func pipeline(ctx context.Context, c *config.Config, o runOptions, log *slog.Logger) error {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), readBuild().metric())
	kafka, err := openBroker(c, log)
	if err != nil {
		return err
	}
	defer kafka.Close()
	var r *relay.Relay
	sending := c.Publish()
	// Rows are refused only once the relay runs, which is made of the publisher.
	sending.Refused = func(ctx context.Context, f *publish.Refusal) error { return r.Refused(ctx, f) }
	publisher, err := publish.New(sending, kafka, log, metrics)
	if err != nil {
		return err
	}
	mapper, err := record.New(c.Record())
	if err != nil {
		return err
	}
	settings := relay.Config{
		Catalog: c.Catalog(), WAL: c.WAL(), Spec: c.Spec(), Routing: c.RoutingFacts(),
		DeadLetters:     deadLetters(c),
		ShutdownTimeout: c.ShutdownTimeout,
		Once:            o.once, OnceTimeout: o.timeout,
	}
	if o.create {
		settings.Init = func(ctx context.Context, db *catalog.DB) error {
			return setUp(ctx, c, db, func(step string) { log.Info(step) })
		}
	}
	r = relay.New(settings, mapper, publisher, kafka, log, metrics)
	server, err := admin.Listen(admin.Config{Listen: c.HTTP.Listen}, r, metrics, log)
	if err != nil {
		return &exitError{err, exitConfig, "choose a free address in http.listen"}
	}
	return serve(ctx, r, server)
}

// deadLetters says what becomes of rows that cannot be published.
func deadLetters(c *config.Config) relay.DeadLetters {
	return relay.DeadLetters{
		Enabled:       c.KeepsDeadLetters(),
		MaxValueBytes: int(c.DeadLetter.MaxValueBytes),
		Retention:     c.DeadLetter.Retention,
		Window:        c.Breaker.Window,
		Share:         c.Breaker.Share,
	}
}

// errEnded ends the HTTP server when the relay has ended by itself.
var errEnded = errors.New("the relay has ended")

// serve runs the relay and its HTTP server. The server stays until the relay
// has stopped, so that readiness tells of the stop.
func serve(ctx context.Context, r *relay.Relay, server *admin.Server) error {
	group, live := errgroup.WithContext(context.WithoutCancel(ctx))
	relaying, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() error {
		defer cancel()
		return server.Run(live)
	})
	group.Go(func() error {
		if err := r.Run(relaying); err != nil {
			return err
		}
		return errEnded
	})
	if err := group.Wait(); !errors.Is(err, errEnded) {
		return err
	}
	return nil
}
