package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/process"
)

// settings is the relay's configuration file.
const settings = `postgres:
  url: %q
kafka:
  brokers: [%s]
log: {format: text}
http:
  listen: %q
`

// build builds the relay's command and that of the example into a directory.
func build(ctx context.Context, dir string) error {
	const module = "github.com/cdc-relay/cdc-relay"
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	root, err := list.Output()
	if err != nil {
		return fmt.Errorf("find module %s (run the demo inside the repository): %w%s", module, err, stderrOf(err))
	}
	// Git refuses to tell the version of a repository of another user, as root often meets one; the demo needs none.
	command := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", dir, //nolint:gosec // The path is ours.
		"./cmd/cdc-relay", "./examples/orders/cmd/orders")
	command.Dir = strings.TrimSpace(string(root))
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build cdc-relay: %w: %s", err, process.Tail(string(output)))
	}
	return nil
}

func stderrOf(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return ": " + process.Tail(string(exit.Stderr))
	}
	return ""
}

// relay is the relay's command as a child process, again and again.
type relay struct {
	binary, config, log string
	http                string // host:port
	client              *http.Client
	process             *process.Process
	kills               atomic.Int64
}

// newRelay writes the configuration file and starts nothing. listen is the address of its HTTP server.
func newRelay(dir, url string, brokers []string, listen string) (*relay, error) {
	r := &relay{
		binary: filepath.Join(dir, "cdc-relay"), config: filepath.Join(dir, "cdc-relay.yaml"), log: filepath.Join(dir, "cdc-relay.log"),
		http:   listen,
		client: &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	quoted := make([]string, len(brokers))
	for i, broker := range brokers {
		quoted[i] = fmt.Sprintf("%q", broker)
	}
	text := fmt.Sprintf(settings, url, strings.Join(quoted, ", "), listen)
	if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return r, nil
}

// start starts the relay and returns when it streams. The child ends with this process on Linux, however that ends.
func (r *relay) start(ctx context.Context) error {
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(r.binary, "run", "--init", "--config", r.config) //nolint:gosec // All arguments are ours.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = environment()
	if r.process, err = process.Start(cmd, process.Options{}); err != nil {
		return err
	}
	return r.waitReady(ctx)
}

// environment is what every child gets: none of the variables that configure a relay or a connection.
func environment() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	return env
}

// waitReady polls /readyz, as an orchestrator would.
func (r *relay) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("not ready after 30 s"))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !r.ready(ctx) {
		select {
		case <-tick.C:
		case <-r.process.Done():
			return r.failure()
		case <-ctx.Done():
			return fmt.Errorf("wait for the relay: %w: %s", context.Cause(ctx), r.logTail())
		}
	}
	return nil
}

func (r *relay) ready(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.http+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := r.client.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// supervise watches the relay until ctx ends, and returns an error when it has ended by itself. With a source of chance
// it kills the relay without warning every second or two, and starts it again.
func (r *relay) supervise(ctx context.Context, chance *rand.Rand, note func(colour, format string, args ...any)) error {
	var kill <-chan time.Time
	for {
		if chance != nil {
			kill = time.After(time.Second + time.Duration(chance.Int64N(int64(time.Second))))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.process.Done():
			return r.failure()
		case <-kill:
			if err := r.restart(ctx, note); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func (r *relay) restart(ctx context.Context, note func(colour, format string, args ...any)) error {
	note(red, "SIGKILL to the relay, process %d", r.process.PID())
	if err := r.kill(); err != nil {
		return err
	}
	r.kills.Add(1)
	began := time.Now()
	if err := r.start(ctx); err != nil {
		return err
	}
	note(green, "relay is back after %s, process %d", short(time.Since(began)), r.process.PID())
	return nil
}

func (r *relay) kill() error {
	if r.process == nil {
		return nil
	}
	err := r.process.Signal(syscall.SIGKILL)
	<-r.process.Done()
	return err
}

// stop lets the relay finish what it has read, confirm it and leave.
func (r *relay) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("still running after 20 s"))
	defer cancel()
	if err := r.process.Stop(ctx, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the relay: %w", err)
	}
	if r.process.Err() != nil {
		return r.failure()
	}
	return nil
}

// failure says how the relay has ended, and what it said last.
func (r *relay) failure() error {
	return fmt.Errorf("relay ended with %v, and last said:\n%s", r.process.State(), r.logTail())
}

func (r *relay) logTail() string { return logTail(r.log) }

func logTail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return process.Tail(string(text))
}
