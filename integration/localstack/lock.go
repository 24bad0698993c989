package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// A fileLock is an advisory lock that the kernel drops when its holder ends, however it ends. The file is opened
// close-on-exec, so that no child process keeps the lock alive.
type fileLock struct{ file *os.File }

var errLocked = errors.New("locked by another process")

// tryLock takes the lock or returns errLocked at once.
func tryLock(path string) (*fileLock, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !isAt(file, path) { // Removed by its last holder since it was opened.
		file.Close()
		return nil, errLocked
	}
	return &fileLock{file: file}, nil
}

func isAt(file *os.File, path string) bool {
	mine, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}

// waitLock takes the lock as soon as it is free; it polls, since a blocking flock cannot be given up.
func waitLock(ctx context.Context, path string) (*fileLock, error) {
	for {
		lock, err := tryLock(path)
		if !errors.Is(err, errLocked) {
			return lock, err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("wait for lock %s: %w", path, err)
		}
	}
}

func (l *fileLock) unlock() { l.file.Close() }

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
