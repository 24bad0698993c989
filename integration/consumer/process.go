package consumer

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/process"
)

// Process is a consumer at work. It is killed when the test ends, and what it has logged is shown when the test has
// failed.
type Process struct {
	*process.Process

	t      testing.TB
	output *process.Output
}

// Start starts a consumer and waits for nothing.
func Start(t testing.TB, o Options) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, output: &process.Output{}}
	cmd := exec.Command(self)
	cmd.Stdout, cmd.Stderr = p.output, p.output
	cmd.Env = append(process.Environ(), variable+"="+string(text), "GORACE=halt_on_error=1 atexit_sleep_ms=0", "GOTRACEBACK=all")
	if p.Process, err = process.Start(cmd, process.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.cleanup)
	return p
}

func (p *Process) cleanup() {
	p.Kill()
	if p.t.Failed() {
		p.t.Logf("consumer %d printed:\n%s", p.PID(), process.Tail(p.Output()))
	}
	if strings.Contains(p.Output(), "WARNING: DATA RACE") {
		p.t.Errorf("data race in a consumer:\n%s", p.Output())
	}
}

// Output is what it has printed so far.
func (p *Process) Output() string { return p.output.String() }

// Kill ends the process without warning, be it frozen or not, and waits for its end.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL) // One that has ended is as dead.
	<-p.Done()
}

// Wait waits for the end and returns the exit code, -1 after a signal. The test fails when it takes longer than limit.
func (p *Process) Wait(limit time.Duration) int {
	p.t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.Done():
		return p.State().ExitCode()
	case <-timer.C:
		p.t.Fatalf("the consumer still runs after %v:\n%s", limit, process.Tail(p.Output()))
		return 0
	}
}

// Stop has it end in order and returns the exit code.
func (p *Process) Stop(limit time.Duration) int {
	p.t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.Wait(limit)
}
