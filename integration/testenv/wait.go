package testenv

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Until polls check until it returns nil, and fails the test with the last error when that takes longer than limit.
func Until(t testing.TB, limit time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err // A check that the limit cuts short says nothing.
		}
		if Pause(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("not so within %v: %v", limit, last)
		}
	}
}

// Pass lets the time pass in which nothing may happen, or everything goes on.
func Pass(t testing.TB, d time.Duration) {
	t.Helper()
	if err := Pause(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// Pause waits for d or for the end of ctx.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
