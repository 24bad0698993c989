package localstack_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv("LOCALSTACK_ORPHAN") != "" {
		orphan()
	}
	os.Exit(testenv.Main(m))
}

// orphan starts servers, prints their process ids and a directory of theirs, and waits to be killed.
func orphan() {
	ctx := context.Background()
	postgres, err := localstack.StartPostgres(ctx, localstack.PostgresConfig{NoSync: true})
	fmt.Println("postgres", postgres.PID(), postgres.DataDir(), err)
	if localstack.HaveJava() == nil {
		kafka, err := localstack.StartKafka(ctx, localstack.KafkaConfig{})
		fmt.Println("kafka", kafka.Brokers()[0].PID(), kafka.Brokers()[0].LogPath(), err)
	}
	fmt.Println("ready")
	select {}
}

// TestServersEndWithTheirParent kills a process that has servers. They end (Linux), or the next user of the package ends
// them; their files are removed.
func TestServersEndWithTheirParent(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LOCALSTACK_ORPHAN=1")
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	pids, paths := map[string]int{}, []string{}
	lines := bufio.NewScanner(output)
	for lines.Scan() && lines.Text() != "ready" {
		var name, path, outcome string
		var pid int
		if _, err := fmt.Sscan(lines.Text(), &name, &pid, &path, &outcome); err != nil || outcome != "<nil>" {
			t.Fatalf("got %q", lines.Text())
		}
		pids[name], paths = pid, append(paths, path)
	}
	must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("got %v, want killed", err)
	}
	if len(pids) == 0 {
		t.Fatal("no server was started")
	}
	if runtime.GOOS == "linux" {
		waitGone(t, pids)
	}
	startPostgres(t, localstack.PostgresConfig{NoSync: true})
	waitGone(t, pids)
	for _, path := range paths {
		if _, err := os.Stat(filepath.Dir(path)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

func waitGone(t *testing.T, pids map[string]int) {
	t.Helper()
	for name, pid := range pids {
		testenv.Until(t, 10*time.Second, func(context.Context) error {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("%s, process %d, is still there: %w", name, pid, err)
			}
			return nil
		})
	}
}
