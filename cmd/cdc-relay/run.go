package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

func newRun(a *app) *cobra.Command {
	var create, once bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Relay until stopped",
		Long: `run relays until SIGTERM or SIGINT, then sends what it has read, confirms it and exits 0.
It waits for what heals by itself: a server or a broker that is unreachable, a slot held
by another relay (it is then the standby). A second signal ends it at once.

With --once it relays what is committed at the start and exits. Then nothing is waited for,
except rows that cannot be published yet, such as those of a missing topic: set --timeout.`,
		Example: `  cdc-relay run --config relay.yaml
  cdc-relay run --config relay.yaml --init
  cdc-relay run --config relay.yaml --once --timeout 5m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout != 0 && !once {
				return usagef("cdc-relay run --once --timeout "+timeout.String(), "--timeout needs --once")
			}
			c, err := a.load(config.Everything)
			if err != nil {
				return err
			}
			log := a.logger(c.Log)
			log.Debug("configuration", "settings", c)
			return pipeline(cmd.Context(), c, runOptions{create: create, once: once, timeout: timeout}, log)
		},
	}
	a.databaseFlag(cmd)
	cmd.Flags().BoolVar(&create, "init", false, "first create what is missing (schema, publication, slot)")
	cmd.Flags().BoolVar(&once, "once", false, "relay what is committed now, then exit")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "with --once: exit 4 with the number of rows left after this `time`")
	return cmd
}
