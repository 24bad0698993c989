package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// A process is a server that runs as a child of this process, in a process group of its own, so that an interrupt typed
// at the terminal reaches the caller alone.
type process struct {
	pid  int
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; read after done
}

// unprivileged is the user that runs PostgreSQL when the caller is root.
const unprivileged = 65534

// attributes are those of every child: asUser drops root's rights; onParentDeath is the signal that the kernel sends
// when this process ends, where it can do that.
func attributes(asUser bool, onParentDeath syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if asUser && os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: unprivileged, Gid: unprivileged}
	}
	setParentDeathSignal(attr, onParentDeath)
	return attr
}

// startProcess starts cmd and waits for its end in the background. Linux sends the parent-death signal when the thread
// that forked ends, not when the process does; so the goroutine that forks keeps its thread to itself and lives until
// the child has ended.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{done: make(chan struct{})}
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
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// signal reports nil when the process has already ended.
func (p *process) signal(sig syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// stop sends sig and waits for the end; when ctx ends first, the process is killed and the error says so.
func (p *process) stop(ctx context.Context, sig syscall.Signal) error {
	if err := p.signal(sig); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		err := p.signal(syscall.SIGKILL)
		<-p.done
		return errors.Join(fmt.Errorf("wait for the end of process %d after %v: %w", p.pid, sig, context.Cause(ctx)), err)
	}
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// run runs a command to its end and returns an error that carries the end of its output.
func run(ctx context.Context, attr *syscall.SysProcAttr, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.SysProcAttr = dir, attr
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	<-p.done
	if p.err != nil {
		return fmt.Errorf("run %s: %w: %s", name, p.err, tail(output.String(), 2000))
	}
	return nil
}

// tail returns the last n bytes of s.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-n):]
}

// logTail returns the end of a log file, for an error message.
func logTail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return tail(string(text), 2000)
}
