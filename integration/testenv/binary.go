package testenv

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// binaries are the relay's command as this process has built it, with and without the race detector.
type binaries struct {
	mu        sync.Mutex
	dir       string
	removeDir func() error
	path      map[bool]string
}

// get builds the command at the first call. Go's build cache makes that quick for the next process.
func (b *binaries) get(race bool) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if path := b.path[race]; path != "" {
		return path, nil
	}
	if b.dir == "" {
		dir, remove, err := localstack.TempDir("binaries")
		if err != nil {
			return "", err
		}
		b.dir, b.removeDir, b.path = dir, remove, map[bool]string{}
	}
	const module = "github.com/cdc-relay/cdc-relay"
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", module, err)
	}
	path := filepath.Join(b.dir, "cdc-relay")
	args := []string{"-C", strings.TrimSpace(string(root)), "build"}
	if race {
		path += "-race"
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "-o", path, "./cmd/cdc-relay")...)
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cdc-relay: %w: %s", err, output)
	}
	b.path[race] = path
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
