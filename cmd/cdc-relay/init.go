package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func newInit(a *app) *cobra.Command {
	var printOnly, accept bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create the tables, the publication and the slot",
		Long: `init creates what is missing: the relay's tables, the publication and the slot. It can
be repeated. Only what is committed after the slot was made is relayed. A slot that
cdc-relay knows and that is gone is never made anew in silence.

With --print it shows the SQL and changes nothing: what is missing on the server, or
everything when no server is named.

With --accept-server a slot that was set up on another server, for example before
pg_upgrade, is bound to this one. Its history starts anew.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if printOnly {
				return a.printSetUp(cmd.Context(), cmd.OutOrStdout())
			}
			c, err := a.load(config.Database)
			if err != nil {
				return err
			}
			db, err := catalog.Open(cmd.Context(), c.Catalog())
			if err != nil {
				return err
			}
			defer db.Close(context.WithoutCancel(cmd.Context()))
			if accept {
				if err := db.AcceptServer(cmd.Context(), c.Postgres.Slot); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "accept this server for slot "+c.Postgres.Slot)
			}
			return setUp(cmd.Context(), c, db, func(step string) { fmt.Fprintln(cmd.OutOrStdout(), step) })
		},
	}
	a.databaseFlag(cmd)
	cmd.Flags().BoolVar(&printOnly, "print", false, "show the SQL for a database administrator, change nothing")
	cmd.Flags().BoolVar(&accept, "accept-server", false, "go on with the slot on this server, with a new history")
	cmd.MarkFlagsMutuallyExclusive("print", "accept-server")
	return cmd
}

// setUp creates what is missing and says each step. It can be repeated.
func setUp(ctx context.Context, c *config.Config, db *catalog.DB, say func(step string)) error {
	conn, err := catalog.Connect(ctx, c.Catalog())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	ran, err := migrations.Up(ctx, conn, migrationOptions(c))
	for _, m := range ran {
		say("apply migration " + m.ID())
	}
	if err != nil {
		return err
	}
	setup, err := identify(ctx, c, db)
	if err != nil {
		return err
	}
	if _, err := db.Init(ctx, setup, func(s catalog.Statement) { say(s.Do) }); err != nil {
		return err
	}
	slot, _, err := db.Slot(ctx, setup.Slot)
	if err != nil {
		return err
	}
	say(fmt.Sprintf("slot %s is ready; what is committed after %s is relayed", setup.Slot, slot.Confirmed))
	return nil
}

// identify returns the set-up with the server's identity where the role may not ask for it over an
// ordinary connection. A replication connection may always.
func identify(ctx context.Context, c *config.Config, db *catalog.DB) (catalog.Setup, error) {
	setup := c.Setup()
	server, err := db.Server(ctx)
	if err != nil || server.SystemID != "" {
		return setup, err
	}
	conn, err := wal.Connect(ctx, c.WAL())
	if err != nil {
		return setup, err
	}
	defer conn.Close()
	system, err := conn.IdentifySystem(ctx)
	if err != nil {
		return setup, err
	}
	setup.SystemID, setup.Timeline = system.SystemID, system.Timeline
	return setup, nil
}

// printSetUp shows the SQL of setUp: what is missing, or all of it when no server is named.
func (a *app) printSetUp(ctx context.Context, out io.Writer) error {
	c, err := a.load(config.Offline)
	if err != nil {
		return err
	}
	if c.NamesServer() {
		return a.printMissing(ctx, out)
	}
	if err := migrations.Print(out, migrations.PSQL, tablesOnly(c)); err != nil {
		return err
	}
	plan, err := catalog.NewPlan(c.Setup(), catalog.Found{})
	if err != nil {
		return err
	}
	return printPlan(out, c, plan, "cdc_relay", "your_database")
}

// tablesOnly leaves the publication to the plan, which prints it too.
func tablesOnly(c *config.Config) migrations.Options {
	options := migrationOptions(c)
	options.Skip = append(options.Skip, "publication")
	return options
}

func (a *app) printMissing(ctx context.Context, out io.Writer) error {
	c, err := a.load(config.Database)
	if err != nil {
		return err
	}
	conn, err := catalog.Connect(ctx, c.Catalog())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	options := tablesOnly(c)
	steps, err := migrations.Status(ctx, conn, options)
	if err != nil {
		return err
	}
	pending := 0
	for _, s := range steps {
		if s.State == migrations.Pending {
			pending++
		} else {
			options.Skip = append(options.Skip, s.Name)
		}
	}
	if pending > 0 {
		if err := migrations.Print(out, migrations.PSQL, options); err != nil {
			return err
		}
	}
	db, err := catalog.Open(ctx, c.Catalog())
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	plan, err := db.Plan(ctx, c.Setup())
	if err != nil {
		return err
	}
	parsed, err := pgconn.ParseConfig(c.Catalog().ConnString)
	if err != nil {
		return err
	}
	return printPlan(out, c, plan, parsed.User, parsed.Database)
}

func printPlan(out io.Writer, c *config.Config, plan catalog.Plan, role, database string) error {
	fmt.Fprintln(out)
	if err := plan.Print(out); err != nil {
		return err
	}
	return catalog.PrintGrants(out, role, database, c.Setup().Tables)
}
