package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// demo runs the command and returns its exit code and output.
func demo(ctx, working context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errors bytes.Buffer
	code = run(ctx, working, args, &out, &errors)
	return code, out.String(), errors.String()
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"--help", exitOK, "Usage:", ""},
		{"-h", exitOK, "--chaos", ""},
		{"--rate 0", exitUsage, "", "--rate is 0: give a number from 1 to 100000"},
		{"--duration -1s", exitUsage, "", "--duration is -1s: give a positive time"},
		{"--speed 3", exitUsage, "", "--help"},
		{"now", exitUsage, "", `unexpected argument "now"`},
	}
	for _, test := range tests {
		code, stdout, stderr := demo(t.Context(), t.Context(), strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) {
			t.Errorf("demo %s exits with %d, stdout %q, stderr %q", test.args, code, stdout, stderr)
		}
	}
}

// The whole tour, with the relay and consumers killed on the way, delivers everything, ships every order once, and leaves
// nothing behind.
func TestTour(t *testing.T) {
	temp := t.TempDir()
	for _, dir := range []string{filepath.Dir(temp), temp} { // PostgreSQL may run as another user.
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := localstack.CacheDir() // before TMPDIR changes
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CDC_RELAY_CACHE", cache)
	t.Setenv("TMPDIR", temp)
	t.Setenv("CDC_RELAY_KAFKA_BROKERS", "127.0.0.1:1") // must not reach the relay
	code, stdout, stderr := demo(t.Context(), t.Context(), "--duration", "3s", "--chaos")
	if code != exitOK || stderr != "" {
		t.Fatalf("demo exits with %d: %s\n%s", code, stderr, stdout)
	}
	for name, fine := range map[string]func(int) bool{
		"committed":    func(n int) bool { return n > 100 },
		"delivered":    func(n int) bool { return n > 100 },
		"missing":      func(n int) bool { return n == 0 },
		"out of order": func(n int) bool { return n == 0 },
		"stray":        func(n int) bool { return n == 0 },
		"rolled back":  func(n int) bool { return n > 0 },
		"shipments":    func(n int) bool { return n > 20 },
		"invoices":     func(n int) bool { return n > 20 },
		"audit trail":  func(n int) bool { return n > 100 },
		"kills":        func(n int) bool { return n > 1 },
	} {
		if n := number(t, stdout, name); !fine(n) {
			t.Errorf("%s: %d", name, n)
		}
	}
	left, err := filepath.Glob(filepath.Join(temp, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if filepath.Base(path) != "ports" { // locks of ports stay, empty
			t.Errorf("left behind: %s", path)
		}
	}
	if t.Failed() {
		t.Log(stdout)
	}
}

// Ctrl-C while the servers start: no summary, no error, nothing left running (see TestMain).
func TestStoppedEarly(t *testing.T) {
	working, cancel := context.WithCancel(t.Context())
	cancel()
	code, stdout, stderr := demo(t.Context(), working)
	if code != exitInterrupted || strings.Contains(stdout, "Summary") || stderr != "" {
		t.Errorf("demo exits with %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// number finds a count in the summary.
func number(t *testing.T, summary, name string) int {
	t.Helper()
	match := regexp.MustCompile(`(?m)^  ` + name + ` +([0-9,]+)`).FindStringSubmatch(summary)
	if match == nil {
		t.Fatalf("no line %q in the summary:\n%s", name, summary)
	}
	n, err := strconv.Atoi(strings.ReplaceAll(match[1], ",", ""))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
