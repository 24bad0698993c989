package main

import (
	"errors"
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

// Exit codes by class of outcome, for scripts and supervisors.
const (
	exitOK          = 0   // done; also a clean stop after a signal
	exitFailure     = 1   // unexpected
	exitUsage       = 2   // the command line is wrong
	exitNo          = 3   // a check answered no: pending migration, not ready
	exitPartly      = 4   // only partly done: --once ran into --timeout
	exitUnreachable = 69  // a server did not answer in time
	exitSlotHeld    = 75  // another process streams from the slot
	exitPrivilege   = 77  // credentials refused or a privilege missing
	exitConfig      = 78  // the configuration is wrong, or a server lacks what it names
	exitInterrupted = 130 // second signal
)

// exitCode is the class of an error: what it says itself, or what its type stands for.
func exitCode(err error) int {
	var coder interface{ ExitCode() int }
	if errors.As(err, &coder) {
		return coder.ExitCode()
	}
	if configuration := (*config.Error)(nil); errors.As(err, &configuration) {
		return exitConfig
	}
	return exitFailure
}

// exitError is an error of a command with its class and what to do about it.
type exitError struct {
	err  error
	code int
	next string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// ExitCode is the process's exit code.
func (e *exitError) ExitCode() int { return e.code }

// Next is what to do.
func (e *exitError) Next() string { return e.next }

// usagef is a mistake on the command line; next is what to type instead.
func usagef(next, format string, args ...any) error {
	return &exitError{fmt.Errorf(format, args...), exitUsage, next}
}
