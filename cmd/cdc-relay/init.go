package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

func newInit(a *app) *cobra.Command {
	var printOnly bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create the schema, the publication and the slot",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := a.load(config.ForDatabase); err != nil {
				return err
			}
			return errors.New("not wired yet")
		},
	}
	a.databaseFlag(cmd)
	cmd.Flags().BoolVar(&printOnly, "print", false, "show the SQL for a database administrator, change nothing")
	return cmd
}
