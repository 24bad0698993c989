package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

func newValidate(a *app) *cobra.Command {
	var live bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check the configuration",
		Long: `validate checks the configuration and the files that it names, without a connection. With
--live it also checks that Postgres has what the configuration names, and that a broker
answers; it changes nothing.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.load(config.Everything)
			if err != nil {
				return err
			}
			kafka, err := openBroker(c, a.logger(c.Log))
			if err != nil {
				return err
			}
			defer kafka.Close()
			out := cmd.OutOrStdout()
			fmt.Fprintln(out, "configuration: ok")
			if !live {
				return nil
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			postgres, brokers := checkPostgres(ctx, out, c), checkKafka(ctx, out, kafka)
			if postgres == nil {
				return brokers
			}
			if brokers != nil {
				complain(a.stderr, brokers)
			}
			return postgres
		},
	}
	a.databaseFlag(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "also ask Postgres and Kafka")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long --live may take")
	return cmd
}

// openBroker reads the files of the Kafka settings; it does not connect yet.
func openBroker(c *config.Config, log *slog.Logger) (*broker.Broker, error) {
	b, err := broker.Open(c.Broker(), log)
	if err != nil {
		return nil, &exitError{err, exitConfig, "correct kafka.tls and kafka.sasl; see docs/configuration.md"}
	}
	return b, nil
}

func checkPostgres(ctx context.Context, out io.Writer, c *config.Config) error {
	db, err := catalog.Open(ctx, c.Catalog())
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	report, err := db.Check(ctx, c.Spec())
	for _, w := range report.Warnings {
		fmt.Fprintf(out, "postgres: warning: %s\n", w)
	}
	if err != nil {
		return err
	}
	if err := checkDeadLetters(ctx, db, c); err != nil {
		return err
	}
	// Behind a relay that runs, or has crashed, the slot is always further on than what is recorded.
	if move, moved := report.Slot.Moved(report.Server.Timeline, report.Row); moved && move.Exact {
		fmt.Fprintf(out, "postgres: warning: %s\n", move.Warning())
	}
	fmt.Fprintf(out, "postgres: ok: version %s, slot %s at %s\n", report.Server.VersionText, report.Slot.Name, report.Slot.Confirmed)
	return nil
}

// checkDeadLetters asks for what the relay needs to keep dead letters, if it is to.
func checkDeadLetters(ctx context.Context, db *catalog.DB, c *config.Config) error {
	if !c.KeepsDeadLetters() {
		return nil
	}
	if err := deadletter.Check(ctx, db); err != nil || c.DeadLetter.Retention == 0 {
		return err
	}
	return deadletter.CheckPurge(ctx, db)
}

func checkKafka(ctx context.Context, out io.Writer, kafka *broker.Broker) error {
	if err := kafka.Ping(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "kafka: ok")
	return nil
}
