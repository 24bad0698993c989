package main

import (
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

// app is what the commands share: where messages go and the global flags.
type app struct {
	stderr     io.Writer
	environ    []string
	configFile string
	flags      []config.Flag
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "cdc-relay",
		Short: "Publish the rows of a Postgres outbox table to Kafka",
		Long: `cdc-relay follows the write-ahead log of Postgres for rows inserted into an outbox
table, publishes each to Kafka, and confirms the log position only behind what the
brokers have acknowledged.

Settings come from a YAML file, from CDC_RELAY_… variables and from flags, each over
the one before.

Exit codes: 0 done, 1 unexpected, 2 wrong command line, 3 a check says no, 4 only partly
done, 69 a server is unreachable, 75 the slot is held by another process, 77 credentials
refused or a privilege missing, 78 wrong configuration or a server that lacks what it
names, 130 interrupted.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	group(root)
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVarP(&a.configFile, "config", "c", "", "YAML `file` of settings")
	a.keyFlag(flags, "log-level", "log.level", "`level` of logging: debug, info, warn or error (default info)")
	a.keyFlag(flags, "log-format", "log.format", "`form` of the log: text, json, or auto: text on a terminal, JSON elsewhere (default auto)")
	root.AddCommand(newRun(a), newInit(a), newMigrate(a), newValidate(a), newHealth(a), newDLQ(a), newInbox(a), newParked(a), newVersion())
	return root
}

// keyFlag adds a flag that sets a key of the configuration.
func (a *app) keyFlag(flags *pflag.FlagSet, name, key, usage string) {
	flags.Func(name, usage, func(text string) error {
		a.flags = append(a.flags, config.Flag{Name: "--" + name, Key: key, Text: text})
		return nil
	})
}

// databaseFlag adds --database-url to a command that talks to Postgres.
func (a *app) databaseFlag(cmd *cobra.Command) {
	a.keyFlag(cmd.Flags(), "database-url", "postgres.url", "connection `string` of Postgres, instead of postgres.url")
}

// load reads the configuration as far as the command uses it.
func (a *app) load(scope config.Scope) (*config.Config, error) {
	return config.Load(config.Source{File: a.configFile, Environ: a.environ, Flags: a.flags}, scope)
}

// logger logs to standard error in the form that the configuration asks for.
func (a *app) logger(c config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo // not reached: Load has checked it
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "text" || c.Format == "auto" && isTerminal(a.stderr) {
		return slog.New(slog.NewTextHandler(a.stderr, options))
	}
	return slog.New(slog.NewJSONHandler(a.stderr, options))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// group makes a command that only has subcommands refuse anything else.
func group(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		next := cmd.CommandPath() + " --help"
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			next = cmd.CommandPath() + " " + near[0]
		}
		return usagef(next, "unknown command %q", strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "cdc-relay "))
	}
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef(cmd.CommandPath()+" --help", "unexpected argument %q", args[0])
	}
	return nil
}

// flagError turns what pflag says into a usage error with the flag that was most likely meant.
func flagError(cmd *cobra.Command, err error) error {
	next := cmd.CommandPath() + " --help"
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: "); ok {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
		if near := config.Nearest(name, known); near != "" {
			next = cmd.CommandPath() + " " + near
		}
	}
	return usagef(next, "%w", err)
}
