package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/relay"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	problem := config.Problem{Where: "relay.yaml:3", Key: "log.level", What: "not a choice", Next: "choose one"}
	check := &catalog.CheckError{Problem: "slot x does not exist", Next: "run `cdc-relay init`", Class: catalog.Configuration}
	for _, tt := range []struct {
		err        error
		code       int
		what, next string // "" is not compared
	}{
		{errors.New("surprise"), exitFailure, "surprise", ""},
		{usagef("cdc-relay --help", "unknown flag"), exitUsage, "unknown flag", "cdc-relay --help"},
		{&config.Error{Problems: []config.Problem{problem}}, exitConfig, "configuration: relay.yaml:3: log.level: not a choice", "choose one"},
		{check, exitConfig, "slot x does not exist", "run `cdc-relay init`"},
		{fmt.Errorf("start: %w", check), exitConfig, "start: slot x does not exist", "run `cdc-relay init`"},
		{&catalog.CheckError{Class: catalog.Privilege}, exitPrivilege, "", ""},
		{&catalog.CheckError{Class: catalog.Unreachable}, exitUnreachable, "", ""},
		{&catalog.CheckError{}, exitFailure, "", ""},
		{&relay.SlotHeldError{Slot: "x", Holder: "y"}, exitSlotHeld, "", ""},
		{fmt.Errorf("look: %w", relay.ErrDeposed), exitSlotHeld, "", ""},
		{relay.ErrSlotChanged, exitSlotHeld, "", ""},
		{&publish.TimelineError{Topic: "t", Timeline: 2}, exitConfig, "", ""},
		{&relay.UnfinishedError{}, exitPartly, "", ""},
		{&migrations.ChangedError{}, exitConfig, "", ""},
		{&wal.ServerError{SQLState: "28P01"}, exitPrivilege, "", ""},
		{&wal.ServerError{SQLState: "3D000"}, exitConfig, "", ""},
		{&wal.ServerError{SQLState: "55006"}, exitSlotHeld, "", ""},
		{&wal.ServerError{SQLState: "57P01"}, exitUnreachable, "", ""},
		{&wal.ServerError{SQLState: "XX000", Hint: "look"}, exitFailure, "", "look"},
		{fmt.Errorf("read the replication stream: %w", wal.ErrEnded), exitUnreachable, "", "run it again once the server answers; it goes on where it stopped"},
		{fmt.Errorf("read the replication stream: %w", io.ErrUnexpectedEOF), exitUnreachable, "", ""},
		{fmt.Errorf("read the replication stream: %w", &net.OpError{Op: "read", Err: syscall.ECONNRESET}), exitUnreachable, "", ""},
		{&pgconn.PgError{Code: "42501"}, exitPrivilege, "", "let a DBA run what `cdc-relay init --print` shows, with --database-url for a role that may read everything"},
		{&pgconn.PgError{Code: "57P03"}, exitUnreachable, "", ""},
		{&pgconn.PgError{Code: "55006", Hint: "delete the rows"}, exitFailure, "", "delete the rows"},
		{&broker.Error{Op: "reach kafka", Hint: "check kafka.brokers", Err: errors.New("refused")}, exitUnreachable, "reach kafka: refused", "check kafka.brokers"},
	} {
		what, next, code := explain(tt.err)
		if code != tt.code || tt.what != "" && what != tt.what || tt.next != "" && next != tt.next {
			t.Errorf("%v: got %q, %q, %d, want %q, %q, %d", tt.err, what, next, code, tt.what, tt.next, tt.code)
		}
	}
}
