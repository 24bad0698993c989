package testenv

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// build is a way to build the relay's command: with the race detector, with the points of package internal/crash.
type build struct{ race, crashPoints bool }

// binaries are the relay's command as this process has built it, in each way that was asked for.
type binaries struct {
	mu        sync.Mutex
	dir       string
	removeDir func() error
	path      map[build]string
}

// get builds the command at the first call. Go's build cache makes that quick for the next process.
func (b *binaries) get(how build) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if path := b.path[how]; path != "" {
		return path, nil
	}
	if b.dir == "" {
		dir, remove, err := localstack.TempDir("binaries")
		if err != nil {
			return "", err
		}
		b.dir, b.removeDir, b.path = dir, remove, map[build]string{}
	}
	const module = "github.com/cdc-relay/cdc-relay"
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", module, err)
	}
	path := filepath.Join(b.dir, "cdc-relay")
	args := []string{"-C", strings.TrimSpace(string(root)), "build"}
	if how.race {
		path += "-race"
		args = append(args, "-race")
	}
	if how.crashPoints {
		path += "-crash"
		args = append(args, "-tags", "crashpoints")
	}
	cmd := exec.Command("go", append(args, "-o", path, "./cmd/cdc-relay")...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cdc-relay: %w: %s", err, output)
	}
	b.path[how] = path
	return path, nil
}

func (b *binaries) remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == "" {
		return nil
	}
	return b.removeDir()
}
