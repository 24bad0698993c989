package languages

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/process"
)

// Versions of the drivers; that of JDBC's is in testdata/pom.xml as well, and psycopg is Debian's, or what is there.
const (
	jdbcVersion = "42.7.8"
	nodePG      = "pg@8.16.3"
)

//go:embed testdata
var testdata embed.FS

// missing skips the test where a language is not installed, and fails it in CI, which installs them all.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// need is [missing] unless the commands are there.
func need(t *testing.T, what string, commands ...string) {
	t.Helper()
	for _, command := range commands {
		if _, err := exec.LookPath(command); err != nil {
			missing(t, command+" not found: install "+what)
		}
	}
}

// python returns an interpreter that has psycopg. Debian's comes first: another one in the path, such as pyenv's, does
// not see Debian's packages.
func python(t *testing.T) string {
	t.Helper()
	for _, command := range []string{"/usr/bin/python3", "python3"} {
		if exec.CommandContext(t.Context(), command, "-c", "import psycopg; assert psycopg.__version__ >= '3'").Run() == nil {
			return command
		}
	}
	missing(t, "no Python with psycopg 3: install python3-psycopg, or have pip install psycopg[binary]")
	return ""
}

// cached returns a directory of the test cache that fill has filled, now or earlier, in this process or another.
func cached(t *testing.T, name string, fill func(ctx context.Context, dir string) error) string {
	t.Helper()
	base, err := localstack.CacheDir()
	must(t, err)
	dir := filepath.Join(base, name)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	// Beside its place, which a rename needs; one that is there was left by a process that was killed.
	staging := fmt.Sprintf("%s.staging-%d", dir, os.Getpid())
	must(t, os.RemoveAll(staging))
	must(t, os.Mkdir(staging, 0o755))
	defer os.RemoveAll(staging)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	must(t, fill(ctx, staging))
	if err := os.Rename(staging, dir); err != nil && !errors.Is(err, fs.ErrExist) { // Another process was faster.
		t.Fatal(err)
	}
	return dir
}

// jdbc returns the class path of the driver, which Maven fetches.
func jdbc(t *testing.T) string {
	t.Helper()
	need(t, "Maven", "mvn")
	dir := cached(t, "jdbc-"+jdbcVersion, func(ctx context.Context, dir string) error {
		pom := filepath.Join(dir, "pom.xml")
		if err := os.WriteFile(pom, read("pom.xml"), 0o644); err != nil {
			return err
		}
		return process.Run(ctx, process.Options{}, dir, "mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies",
			"-DoutputDirectory="+dir)
	})
	return filepath.Join(dir, "*")
}

// nodeModules returns a node_modules with the driver, which npm fetches.
func nodeModules(t *testing.T) string {
	t.Helper()
	dir := cached(t, "node-"+nodePG, func(ctx context.Context, dir string) error {
		if _, err := exec.LookPath("npm"); err != nil {
			return fmt.Errorf("npm is needed to fetch %s: %w", nodePG, err)
		}
		return process.Run(ctx, process.Options{}, dir, "npm", "install", "--prefix", dir, "--ignore-scripts", "--no-audit",
			"--no-fund", "--loglevel=error", nodePG)
	})
	return filepath.Join(dir, "node_modules")
}

// read returns a file of testdata.
func read(name string) []byte {
	text, err := testdata.ReadFile("testdata/" + name)
	if err != nil {
		panic(err)
	}
	return text
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
