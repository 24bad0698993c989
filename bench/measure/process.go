package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/process"
)

// writeConfig writes a configuration of the relay, with dotted keys over the usual ones, and returns its path.
func (l *Lab) writeConfig(slot, listen string, more map[string]any) (string, error) {
	flat := map[string]any{
		"postgres.url": l.pg.URL(database), "postgres.slot": slot, "postgres.publication": publication,
		"kafka.brokers": l.kafka.Addrs(), "routing.topic": topicOf(slot), "http.listen": listen,
	}
	maps.Copy(flat, more)
	config := map[string]map[string]any{}
	for key, value := range flat {
		section, name, _ := strings.Cut(key, ".")
		if config[section] == nil {
			config[section] = map[string]any{}
		}
		config[section][name] = value
	}
	text, err := json.Marshal(config) // JSON is YAML, too.
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.dir, slot+".yaml")
	return path, os.WriteFile(path, text, 0o600)
}

// command runs the relay's command to its end.
func (l *Lab) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, l.relay, args...)
	cmd.Env = process.Environ()
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cdc-relay %s: %w: %s", args[0], err, output)
	}
	return nil
}

// child is a process at work that is watched from outside.
type child struct {
	*process.Process
	output  *process.Output
	started time.Time
}

func start(path string, args ...string) (*child, error) {
	cmd := exec.Command(path, args...)
	c := &child{output: &process.Output{}, started: time.Now()}
	cmd.Stdout, cmd.Stderr, cmd.Env = c.output, c.output, process.Environ()
	var err error
	c.Process, err = process.Start(cmd, process.Options{})
	return c, err
}

// failure says how the process ended, with what it printed.
func (c *child) failure() error {
	return fmt.Errorf("process has ended: %v: %s", c.State(), process.Tail(c.output.String()))
}

// ticksPerSecond is the unit of CPU times in /proc (USER_HZ, 100 on every Linux).
const ticksPerSecond = 100

// cpuOf returns the CPU time, user and system, that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(text, []byte(") ")) // The name may hold spaces.
	fields := strings.Fields(string(rest))
	var ticks int64
	for _, i := range []int{11, 12} { // utime and stime, fields 14 and 15 of proc(5)
		if i >= len(fields) {
			return 0, fmt.Errorf("read CPU time of process %d: %d fields", pid, len(fields))
		}
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// peakOf returns the kernel's high-water mark of a process's memory (VmHWM), in bytes. The peak of wait4(2) will not do:
// it counts the memory of the parent before the exec.
func peakOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read peak memory of process %d: %w", pid, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("read peak memory of process %d: it has ended", pid)
}
