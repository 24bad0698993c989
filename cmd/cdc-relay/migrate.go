package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func newMigrate(a *app) *cobra.Command {
	var only onlySome
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or change the tables in Postgres",
		Long: `migrate keeps the tables that cdc-relay brings along: the default outbox table, the
relay's own record of slots, the default publication, the dead letters, and the inbox of
consumers. Where the configuration names another outbox table or publication, that part is
left out.

--only chooses among them, by their names. A database of which only consumers use tables
needs cdc_relay_inbox.`,
		Example: `  cdc-relay migrate up
  cdc-relay migrate up --only cdc_relay_inbox --database-url postgres://…/billing
  cdc-relay migrate print --only cdc_relay_inbox --format flyway`,
	}
	group(cmd)
	cmd.PersistentFlags().StringSliceVar(&only.names, "only", nil, "none but these `migrations`, by name")
	cmd.AddCommand(newMigrateUp(a, &only), newMigrateDown(a, &only), newMigrateStatus(a, &only), newMigratePrint(a, &only))
	return cmd
}

func newMigrateUp(a *app, only *onlySome) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Apply the pending migrations",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withMigrations(cmd, only, func(conn *pgx.Conn, options migrations.Options) error {
				ran, err := migrations.Up(cmd.Context(), conn, options)
				return report(cmd, "applied", "nothing is pending", ran, err)
			})
		},
	}
	a.databaseFlag(cmd)
	return cmd
}

func newMigrateDown(a *app, only *onlySome) *cobra.Command {
	var steps int
	var force bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take back the newest migration",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if steps < 1 {
				return usagef("cdc-relay migrate down --steps 1", "--steps %d is not positive", steps)
			}
			return a.withMigrations(cmd, only, func(conn *pgx.Conn, options migrations.Options) error {
				options.Force = force
				ran, err := migrations.Down(cmd.Context(), conn, steps, options)
				return report(cmd, "took back", "nothing is applied", ran, err)
			})
		},
	}
	a.databaseFlag(cmd)
	cmd.Flags().IntVar(&steps, "steps", 1, "how many to take back")
	cmd.Flags().BoolVar(&force, "force", false, "also drop what still holds rows or is in use")
	return cmd
}

// report prints the migrations that ran, also when a later one failed.
func report(cmd *cobra.Command, did, none string, ran []migrations.Migration, err error) error {
	for _, m := range ran {
		fmt.Fprintln(cmd.OutOrStdout(), did, m.ID())
	}
	if len(ran) == 0 && err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), none)
	}
	return err
}

func newMigrateStatus(a *app, only *onlySome) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is applied; exit 3 when something is pending",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withMigrations(cmd, only, func(conn *pgx.Conn, options migrations.Options) error {
				steps, err := migrations.Status(cmd.Context(), conn, options)
				if err != nil {
					return err
				}
				return printStatus(cmd, steps, options.Only)
			})
		},
	}
	a.databaseFlag(cmd)
	return cmd
}

func printStatus(cmd *cobra.Command, steps []migrations.Step, only []string) error {
	explain := map[migrations.State]string{
		migrations.Skipped: "the configuration names another, or --only does",
		migrations.Foreign: "was there before; left alone",
	}
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	pending := 0
	for _, s := range steps {
		note := explain[s.State]
		switch s.State {
		case migrations.Applied:
			note = s.AppliedAt.UTC().Format("2006-01-02 15:04:05Z")
		case migrations.Pending:
			pending++
		}
		fmt.Fprintln(table, strings.TrimRight(s.ID()+"\t"+string(s.State)+"\t"+note, "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the status: %w", err)
	}
	if pending > 0 {
		next := "cdc-relay migrate up"
		if len(only) > 0 {
			next += " --only " + strings.Join(only, ",")
		}
		return &exitError{fmt.Errorf("migrations are pending: %d", pending), exitNo, next}
	}
	return nil
}

func newMigratePrint(a *app, only *onlySome) *cobra.Command {
	formats := make([]string, 0, len(migrations.Formats()))
	for _, f := range migrations.Formats() {
		formats = append(formats, string(f))
	}
	format := formats[0]
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Show the SQL, for psql and other migration tools",
		Long:  "print shows the SQL. It needs no connection.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(formats, format) {
				return usagef("cdc-relay migrate print --format "+formats[0], "unknown format %q", format)
			}
			c, err := a.load(config.Offline)
			if err != nil {
				return err
			}
			options, err := only.options(cmd, c)
			if err != nil {
				return err
			}
			return migrations.Print(cmd.OutOrStdout(), migrations.Format(format), options)
		},
	}
	cmd.Flags().StringVar(&format, "format", format, strings.Join(formats, ", "))
	return cmd
}

// withMigrations calls do with a connection and the options that the configuration gives.
func (a *app) withMigrations(cmd *cobra.Command, only *onlySome, do func(*pgx.Conn, migrations.Options) error) error {
	c, err := a.load(config.Database)
	if err != nil {
		return err
	}
	options, err := only.options(cmd, c)
	if err != nil {
		return err
	}
	conn, err := catalog.Connect(cmd.Context(), c.Catalog())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(cmd.Context()))
	return do(conn, options)
}

// onlySome is the flag --only.
type onlySome struct{ names []string }

// options are those of the configuration, of which --only leaves some. What it names is wanted, whatever
// the configuration uses.
func (o *onlySome) options(cmd *cobra.Command, c *config.Config) (migrations.Options, error) {
	if !cmd.Flags().Changed("only") {
		return migrationOptions(c), nil
	}
	all, err := migrations.All()
	if err != nil {
		return migrations.Options{}, err
	}
	known := make([]string, len(all))
	for i, m := range all {
		known[i] = m.Name
	}
	for _, name := range o.names {
		if slices.Contains(known, name) {
			continue
		}
		next := "one of " + strings.Join(known, ", ")
		if near := config.Nearest(name, known); near != "" {
			next = cmd.CommandPath() + " --only " + near
		}
		return migrations.Options{}, usagef(next, "unknown migration %q", name)
	}
	if len(o.names) == 0 {
		return migrations.Options{}, usagef(cmd.CommandPath()+" --help", "--only is empty")
	}
	return migrations.Options{Only: o.names}, nil
}

// migrationOptions leaves out the default table and publication where the configuration names
// others.
func migrationOptions(c *config.Config) migrations.Options {
	names := config.Default()
	setup, usual := c.Setup(), names.Setup()
	var options migrations.Options
	if !slices.Contains(setup.Tables, usual.Tables[0]) {
		options.Skip = append(options.Skip, "outbox", "publication")
	} else if setup.Publication != usual.Publication {
		options.Skip = append(options.Skip, "publication")
	}
	return options
}
