package testenv

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/process"
)

// RelayOptions say how to run the relay.
type RelayOptions struct {
	// Settings go over those of [Env.Settings].
	Settings Settings
	// Args follow "run --config FILE".
	Args []string
	// Environ are further variables, as NAME=value.
	Environ []string
	// Plain runs a binary without the race detector even when the test has it: to measure memory or speed.
	Plain bool
	// CrashAt arms a point of package internal/crash, as "point", "point:n" for its n-th pass or "point:n:stop": there
	// the relay sends itself SIGKILL, or SIGSTOP.
	CrashAt string
}

// Relay is the relay's command at work, as a child process. It is killed when the test ends, and what it has logged is
// shown when the test has failed.
type Relay struct {
	t       testing.TB
	process *process.Process
	http    string
	output  *process.Output
}

// StartRelay runs "cdc-relay run" and does not wait for anything.
func (e *Env) StartRelay(opts RelayOptions) *Relay {
	e.t.Helper()
	binary, err := shared.binaries.get(build{race: raceEnabled && !opts.Plain, crashPoints: opts.CrashAt != ""})
	if err != nil {
		e.t.Fatal(err)
	}
	port, err := localstack.ReservePort()
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(port.Release)
	settings := Settings{"http.listen": port.Addr()}
	maps.Copy(settings, opts.Settings)
	r := &Relay{t: e.t, output: &process.Output{}, http: "http://" + fmt.Sprint(settings["http.listen"])}
	cmd := exec.Command(binary, append([]string{"run", "--config", e.WriteConfig(settings)}, opts.Args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = r.output, r.output, environment(opts.Environ)
	if opts.CrashAt != "" {
		cmd.Env = append(cmd.Env, "CDC_RELAY_CRASH_AT="+opts.CrashAt)
	}
	if r.process, err = process.Start(cmd, process.Options{}); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(r.cleanup)
	return r
}

func (r *Relay) cleanup() {
	r.Kill()
	if r.t.Failed() {
		r.t.Logf("relay %d printed:\n%s", r.process.PID(), process.Tail(r.Output()))
	}
	if strings.Contains(r.Output(), "WARNING: DATA RACE") {
		r.t.Errorf("data race in the relay:\n%s", r.Output())
	}
}

// PID returns the process id.
func (r *Relay) PID() int { return r.process.PID() }

// Done is closed when the process has ended.
func (r *Relay) Done() <-chan struct{} { return r.process.Done() }

// Output returns what the relay has printed so far.
func (r *Relay) Output() string { return r.output.String() }

// Signal sends a signal.
func (r *Relay) Signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// Kill ends the process without warning and waits for its end.
func (r *Relay) Kill() {
	r.t.Helper()
	r.Signal(syscall.SIGKILL)
	<-r.process.Done()
}

// Wait waits for the end and returns the exit code, -1 after a signal that the relay did not handle. The test fails
// when the relay still runs after limit.
func (r *Relay) Wait(limit time.Duration) int {
	r.t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.process.Done():
		return r.process.State().ExitCode()
	case <-timer.C:
		r.t.Fatalf("relay still runs after %v", limit)
		return 0
	}
}

// Stop sends SIGTERM and waits like [Relay.Wait].
func (r *Relay) Stop(limit time.Duration) int {
	r.t.Helper()
	r.Signal(syscall.SIGTERM)
	return r.Wait(limit)
}

// WaitOutput waits until the relay has printed the text.
func (r *Relay) WaitOutput(text string, limit time.Duration) {
	r.t.Helper()
	Until(r.t, limit, func(context.Context) error {
		if !strings.Contains(r.Output(), text) {
			return fmt.Errorf("%q not in the relay's output", text)
		}
		return nil
	})
}

// Get asks the relay's HTTP server for a path and returns status and body.
func (r *Relay) Get(ctx context.Context, path string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.http+path, nil)
	if err != nil {
		return 0, "", err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// WaitStatus waits until the path is answered with the status and returns the body.
func (r *Relay) WaitStatus(path string, status int, limit time.Duration) string {
	r.t.Helper()
	var body string
	Until(r.t, limit, func(ctx context.Context) error {
		if !r.process.Running() {
			r.t.Fatalf("relay has ended: %v", r.process.State())
		}
		got, text, err := r.Get(ctx, path)
		if err == nil && got != status {
			err = fmt.Errorf("%s answers %d: %s", path, got, text)
		}
		body = text
		return err
	})
	return body
}

// WaitReady waits until /readyz says 200.
func (r *Relay) WaitReady(limit time.Duration) {
	r.t.Helper()
	r.WaitStatus("/readyz", http.StatusOK, limit)
}

// Result is what a command printed and how it ended.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs "cdc-relay ARGS" to its end, for at most a minute. Add --config with [Env.WriteConfig] where it is wanted.
func (e *Env) Run(args ...string) Result {
	e.t.Helper()
	binary, err := shared.binaries.get(build{race: raceEnabled})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &stdout, &stderr, environment(nil)
	p, err := process.Start(cmd, process.Options{})
	if err != nil {
		e.t.Fatal(err)
	}
	return Result{Code: p.State().ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}
