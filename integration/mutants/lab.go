package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	// buildLimit bounds one build, testLimit one test.
	buildLimit = 3 * time.Minute
	testLimit  = time.Minute
)

// lab builds and runs tests, with and without mutants.
type lab struct {
	root string
	dir  string // for everything that is written
}

func (l *lab) open() error {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	l.dir = dir
	return nil
}

func (l *lab) close() { _ = os.RemoveAll(l.dir) }

// build compiles the tests of a package and returns the binary's path; overlay may be empty.
func (l *lab) build(ctx context.Context, dir, pkg, overlay string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	binary := filepath.Join(dir, "test")
	args := []string{"test", "-c", "-o", binary}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = l.root
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the tests of %s: %w\n%s", pkg, err, tail(string(output)))
	}
	return binary, nil
}

// result is what became of one test.
type result struct {
	output string
	passed bool
	late   bool // it did not end in time
}

// run runs one test of a binary.
func (l *lab) run(ctx context.Context, binary, pkg, test string) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, testLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.v", "-test.count=1", "-test.timeout=0", "-test.run", pattern(test))
	cmd.Dir = filepath.Join(l.root, filepath.FromSlash(pkg))
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	r := result{output: string(output), late: errors.Is(ctx.Err(), context.DeadlineExceeded)}
	var exit *exec.ExitError
	switch {
	case err == nil:
		r.passed = strings.Contains(r.output, "--- PASS: "+test+" ")
		if !r.passed {
			return r, fmt.Errorf("%s has no test %s", pkg, test)
		}
	case r.late, errors.As(err, &exit) && exit.Exited():
	default:
		return r, fmt.Errorf("run %s of %s: %w", test, pkg, err)
	}
	return r, nil
}

// pattern is the argument of -test.run that matches one test or subtest and no other.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// baseline checks that each test passes without any mutant.
func (l *lab) baseline(ctx context.Context, chosen []mutant) error {
	tests := map[string][]string{} // by package
	for _, m := range chosen {
		tests[m.pkg] = append(tests[m.pkg], m.test)
	}
	var packages []string
	for pkg := range tests {
		packages = append(packages, pkg)
	}
	errs := make([]error, len(packages))
	inParallel(len(packages), func(i int) { errs[i] = l.passes(ctx, packages[i], tests[packages[i]]) })
	return errors.Join(errs...)
}

func (l *lab) passes(ctx context.Context, pkg string, tests []string) error {
	dir, err := os.MkdirTemp(l.dir, "")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	binary, err := l.build(ctx, dir, pkg, "")
	if err != nil {
		return err
	}
	done := map[string]bool{}
	for _, test := range tests {
		if done[test] {
			continue
		}
		done[test] = true
		r, err := l.run(ctx, binary, pkg, test)
		if err == nil && !r.passed {
			err = fmt.Errorf("%s of %s fails without any mutant:\n%s", test, pkg, tail(r.output))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hunt runs every mutant, prints a line for each, and returns how many were not caught.
func (l *lab) hunt(ctx context.Context, chosen []mutant) (failed int) {
	var mu sync.Mutex
	inParallel(len(chosen), func(i int) {
		m, began := &chosen[i], time.Now()
		err := l.catch(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		took := time.Since(began).Round(100 * time.Millisecond)
		if err != nil {
			failed++
			fmt.Printf("NOT CAUGHT  %s (%s, %v): %v\n", m.name, m.test, took, err)
			return
		}
		fmt.Printf("caught      %s (%s, %v)\n", m.name, m.test, took)
	})
	return failed
}

// catch returns nil when the mutant's test fails as it should.
func (l *lab) catch(ctx context.Context, m *mutant) error {
	dir, err := os.MkdirTemp(l.dir, "")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := m.overlay(l.root, dir)
	if err != nil {
		return err
	}
	binary, err := l.build(ctx, dir, m.pkg, overlay)
	if err != nil {
		return err
	}
	r, err := l.run(ctx, binary, m.pkg, m.test)
	if err != nil {
		return err
	}
	return m.judge(r)
}

// judge returns nil when the test has failed by its own judgement, and in the words that were expected.
func (m *mutant) judge(r result) error {
	died := strings.Contains(r.output, "\npanic: ") || strings.HasPrefix(r.output, "panic: ") || strings.Contains(r.output, "fatal error: ")
	switch {
	case r.late:
		return fmt.Errorf("the test did not end within %v:\n%s", testLimit, tail(r.output))
	case r.passed:
		return errors.New("it survived: the test passes with it")
	case died && !m.dies:
		return fmt.Errorf("the test died instead of failing:\n%s", tail(r.output))
	case !died && !strings.Contains(r.output, "--- FAIL: "+m.test+" "):
		return fmt.Errorf("the test did not fail by itself:\n%s", tail(r.output))
	}
	if !regexp.MustCompile(m.says).MatchString(r.output) {
		return fmt.Errorf("the test fails, but does not say %q:\n%s", m.says, tail(r.output))
	}
	return nil
}

// inParallel calls work for 0 to n-1, on a few goroutines.
func inParallel(n int, work func(int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				work(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// tail returns the last part of an output.
func tail(output string) string {
	const most = 3000
	output = strings.TrimSpace(output)
	return output[max(0, len(output)-most):]
}
