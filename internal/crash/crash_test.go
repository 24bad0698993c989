//go:build unix

package crash_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAt(t *testing.T) {
	for _, tt := range []struct {
		name, tags, at string
		printed        int
		killed         bool
	}{
		{"ordinary build", "", "here", 3, false},
		{"not armed", "crashpoints", "", 3, false},
		{"first pass", "crashpoints", "here", 0, true},
		{"third pass", "crashpoints", "here:3", 2, true},
		{"never reached", "crashpoints", "here:4", 3, false},
		{"stopped and resumed", "crashpoints", "here:2:stop", 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(build(t, tt.tags))
			cmd.Env = append(os.Environ(), "CDC_RELAY_CRASH_AT="+tt.at)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if tt.at == "here:2:stop" {
				resume(t, cmd.Process.Pid)
			}
			printed := 0
			for lines := bufio.NewScanner(out); lines.Scan(); printed++ {
			}
			_ = cmd.Wait()
			status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if killed := status.Signaled() && status.Signal() == syscall.SIGKILL; killed != tt.killed || printed != tt.printed {
				t.Errorf("killed %v after %d passes, want %v after %d", killed, printed, tt.killed, tt.printed)
			}
		})
	}
}

// resume waits until the child has stopped itself and wakes it.
func resume(t *testing.T, pid int) {
	t.Helper()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child did not stop: %v, %v", status, err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// build makes the child with or without the tag.
func build(t *testing.T, tags string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "child")
	if out, err := exec.Command("go", "build", "-tags", tags, "-o", binary, "./testdata/child").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}
