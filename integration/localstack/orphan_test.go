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

	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv("LOCALSTACK_ORPHAN") != "" {
		orphan()
	}
	code := testenv.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// orphan starts servers, prints their process ids and a directory of theirs, and waits to be killed.
func orphan() {
	ctx := context.Background()
	postgres, err := localstack.StartPostgres(ctx, localstack.PostgresConfig{NoSync: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("postgres", postgres.PID(), postgres.DataDir())
	if localstack.HaveJava() == nil {
		kafka, err := localstack.StartKafka(ctx, localstack.KafkaConfig{})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("kafka", kafka.Brokers()[0].PID(), kafka.Brokers()[0].LogPath())
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
		var name, path string
		var pid int
		if _, err := fmt.Sscanf(lines.Text(), "%s %d %s", &name, &pid, &path); err != nil {
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
