package localstack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// A runDir holds the files of one running server. Its owner keeps the lock file beside it locked for as long as it
// lives; a directory whose lock is free has lost its owner and is removed by whoever comes next.
type runDir struct {
	path string
	lock *fileLock
}

// runRoot is the parent of all run directories of this user.
func runRoot() (string, error) {
	return ownedDir(filepath.Join(os.TempDir(), "cdc-relay-run-"+strconv.Itoa(os.Getuid())))
}

// newRunDir removes what dead owners left behind and creates a directory that any user may enter.
func newRunDir(name string) (*runDir, error) {
	root, err := runRoot()
	if err != nil {
		return nil, err
	}
	sweep(root)
	for {
		path := filepath.Join(root, name+"-"+strconv.FormatUint(uint64(rand.Uint32()), 36))
		lock, err := tryLock(path + ".lock")
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := mkdirOpen(path); err != nil {
			lock.unlock()
			if os.IsExist(err) {
				continue
			}
			return nil, fmt.Errorf("create run directory: %w", err)
		}
		return &runDir{path: path, lock: lock}, nil
	}
}

// TempDir creates a directory for what a process needs while it runs. The caller removes it; if it is killed, the next
// user of this package does.
func TempDir(name string) (path string, remove func() error, err error) {
	dir, err := newRunDir(name)
	if err != nil {
		return "", nil, err
	}
	return dir.path, dir.remove, nil
}

func (d *runDir) join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// noteProcess records a server process, for sweep, where the system cannot end it together with its parent.
func (d *runDir) noteProcess(pid int) error {
	file, err := os.OpenFile(d.path+".pids", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("note server process: %w", err)
	}
	_, err = fmt.Fprintln(file, pid)
	return errors.Join(err, file.Close())
}

// remove deletes the directory and gives up the lock.
func (d *runDir) remove() error {
	err := removeRunDir(d.path)
	d.lock.unlock()
	return err
}

func removeRunDir(path string) error {
	return errors.Join(os.RemoveAll(path), os.RemoveAll(path+".pids"), os.RemoveAll(path+".lock"))
}

// sweep removes run directories without an owner, and ends servers that are still at work in them. Errors are left to
// the next sweep: another process may be sweeping too.
func sweep(root string) {
	locks, _ := filepath.Glob(filepath.Join(root, "*.lock"))
	for _, name := range locks {
		lock, err := tryLock(name)
		if err != nil {
			continue
		}
		path := strings.TrimSuffix(name, ".lock")
		pids, _ := os.ReadFile(path + ".pids")
		for field := range strings.FieldsSeq(string(pids)) {
			if pid, err := strconv.Atoi(field); err == nil && strings.Contains(commandLine(pid), path) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_ = removeRunDir(path)
		lock.unlock()
	}
}

// commandLine returns the arguments of a process, or "" when it cannot be told. It protects a stranger that has
// inherited the process id of a dead server.
func commandLine(pid int) string {
	if text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); err == nil {
		return string(text)
	}
	text, _ := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return string(text)
}
