package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

func newValidate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check the configuration",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := a.load(config.ForRelay); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "configuration: ok")
			return nil
		},
	}
	a.databaseFlag(cmd)
	return cmd
}
