// Package process runs child processes that end with their parent, however that ends.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// Unprivileged is the user and group to which root hands children that need no rights: nobody.
const Unprivileged = 65534

// Process is a running child, or one that has ended. Its methods may be called from any goroutine.
type Process struct {
	pid  int
	done chan struct{}
	err  error            // how it ended; read after done
	end  *os.ProcessState // likewise
}

// Options say how to run a child.
type Options struct {
	// DropRoot runs the child as user Unprivileged when this process is root.
	DropRoot bool
	// KnownUser gives the child a user that the password file knows, where the caller's is not in it, by a user
	// namespace. Only Linux has those.
	KnownUser bool
	// OnParentDeath is the signal that the kernel sends to the child when this process ends. Only Linux can do that.
	// Default: SIGKILL.
	OnParentDeath syscall.Signal
}

// Start starts cmd, in a process group of its own, so that an interrupt typed at the terminal reaches the caller alone.
// It sets cmd.SysProcAttr. A goroutine waits for the child's end; the caller must not.
//
// Linux sends the parent-death signal when the thread that forked ends, not when the process does; so the goroutine
// that forks keeps its thread to itself and lives until the child has ended.
func Start(cmd *exec.Cmd, opts Options) (*Process, error) {
	if opts.OnParentDeath == 0 {
		opts.OnParentDeath = syscall.SIGKILL
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if opts.DropRoot && os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: Unprivileged, Gid: Unprivileged}
	}
	setParentDeathSignal(cmd.SysProcAttr, opts.OnParentDeath)
	if opts.KnownUser && os.Getuid() != 0 {
		if _, err := user.LookupId(strconv.Itoa(os.Getuid())); err != nil {
			mapUser(cmd.SysProcAttr)
		}
	}
	p := &Process{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		p.end = cmd.ProcessState
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Run runs a command to its end. The error carries the last part of what it printed.
func Run(ctx context.Context, opts Options, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var output strings.Builder
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	p, err := Start(cmd, opts)
	if err != nil {
		return err
	}
	<-p.done
	if p.err != nil {
		return fmt.Errorf("run %s: %w: %s", name, p.err, Tail(output.String()))
	}
	return nil
}

// PID returns the process id, also after the end.
func (p *Process) PID() int { return p.pid }

// Done is closed when the child has ended and all that it printed has been copied.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running says whether the child has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Err waits for the end and returns nil or how the child failed, as [exec.Cmd.Wait] does.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// State waits for the end and returns what the system knows of it: exit code, CPU time, peak memory.
func (p *Process) State() *os.ProcessState {
	<-p.done
	return p.end
}

// Signal sends a signal. It returns nil when the child has already ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if !p.Running() {
		return nil
	}
	if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// Stop sends a signal and waits for the end. When ctx ends first, the child is killed and the error says so.
func (p *Process) Stop(ctx context.Context, sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		err := p.Signal(syscall.SIGKILL)
		<-p.done
		return errors.Join(fmt.Errorf("wait for the end of process %d after %v: %w", p.pid, sig, context.Cause(ctx)), err)
	}
}

// Tail returns the last part of an output, for an error message.
func Tail(output string) string {
	const most = 2000
	output = strings.TrimSpace(output)
	return output[max(0, len(output)-most):]
}
