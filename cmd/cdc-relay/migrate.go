package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

func newMigrate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or change the tables of the relay",
	}
	group(cmd)
	for _, sub := range []struct{ use, short string }{
		{"up", "Apply the pending migrations"},
		{"down", "Take back the last migration"},
		{"status", "Show which migrations are applied; exit 3 when one is pending"},
		{"print", "Show the SQL, for psql and other migration tools"},
	} {
		child := &cobra.Command{
			Use: sub.use, Short: sub.short, Args: noArgs,
			RunE: func(*cobra.Command, []string) error {
				if _, err := a.load(config.ForDatabase); err != nil {
					return err
				}
				return errors.New("not wired yet")
			},
		}
		a.databaseFlag(child)
		cmd.AddCommand(child)
	}
	return cmd
}
