package main

import (
	"os"
	"syscall"
	"testing"
)

// The first signal asks for a clean stop, the second ends the process at once.
func TestSignals(t *testing.T) {
	t.Parallel()
	signals, exited := make(chan os.Signal), make(chan int)
	ctx := untilSignal(signals, func(code int) { exited <- code })
	if ctx.Err() != nil {
		t.Fatal("stopped before any signal")
	}
	signals <- syscall.SIGTERM
	<-ctx.Done()
	signals <- os.Interrupt
	if code := <-exited; code != exitInterrupted {
		t.Errorf("got exit code %d, want %d", code, exitInterrupted)
	}
}
