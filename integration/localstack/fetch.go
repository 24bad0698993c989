package localstack

import (
	"context"
	"fmt"
	"os"
	"time"
)

// complete says whether a directory holds an unpacked server; it gets its name only when it does.
func complete(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// fetchOnce fills dir unless it is complete, in one process at a time. fetch is given an empty directory beside it and
// returns what is to become dir. When ctx ends, fetchOnce returns, and fetch goes on in the background.
func fetchOnce(ctx context.Context, dir string, progress Progress, what string, fetch func(staging string) (string, error)) error {
	if complete(dir) {
		return nil
	}
	lock, err := waitLock(ctx, dir+".lock")
	if err != nil {
		return err
	}
	return watch(ctx, progress, what, func() error {
		defer lock.unlock()
		if complete(dir) { // Another process was faster.
			return nil
		}
		staging := dir + ".staging" // One that is there was left by a process that was killed.
		if err := os.RemoveAll(staging); err != nil {
			return err
		}
		if err := mkdirOpen(staging); err != nil {
			return err
		}
		defer os.RemoveAll(staging)
		fetched, err := fetch(staging)
		if err != nil {
			return err
		}
		return os.Rename(fetched, dir)
	})
}

// watch runs a slow step, and reports when it begins and every other second while it lasts.
func watch(ctx context.Context, progress Progress, what string, step func() error) error {
	progress.say(what)
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- step() }()
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ticker.C:
			progress.say(fmt.Sprintf("%s … %.0f s", what, time.Since(began).Seconds()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
