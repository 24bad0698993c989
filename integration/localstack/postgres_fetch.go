package localstack

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// releases are the published binaries by major version.
var releases = map[int]embeddedpostgres.PostgresVersion{
	18: embeddedpostgres.V18,
	17: embeddedpostgres.V17,
	16: embeddedpostgres.V16,
	15: embeddedpostgres.V15,
	14: embeddedpostgres.V14,
}

// PostgresMajors returns the major versions that [StartPostgres] knows, newest first.
func PostgresMajors() []int { return []int{18, 17, 16, 15, 14} }

// FetchPostgres returns the directory that holds bin, lib and share of a major version, and downloads and unpacks it
// first if it is not in the cache. Several processes may call it at once. ctx ends the waiting, not the download.
func FetchPostgres(ctx context.Context, major int, progress Progress) (string, error) {
	version, known := releases[major]
	if !known {
		return "", fmt.Errorf("find PostgreSQL %d: known major versions are %v", major, PostgresMajors())
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "postgres-"+string(version))
	if complete(dir) {
		return dir, nil
	}
	err = fetchOnce(ctx, dir, progress, fmt.Sprintf("fetching PostgreSQL %s", version), func(staging string) (string, error) {
		return unpackPostgres(version, staging)
	})
	if err != nil {
		return "", fmt.Errorf("fetch PostgreSQL %s: %w", version, err)
	}
	return dir, nil
}

// unpackPostgres has the embedded-postgres library download and unpack a version. The library offers that only as the
// first step of Start, whose next step is pg_ctl in the data directory. That directory holds nothing but a version
// file here: it makes the library skip initdb, and makes pg_ctl give up at once. Then initdb and the server can be run
// in the way this package needs: under another user, as a direct child.
func unpackPostgres(version embeddedpostgres.PostgresVersion, staging string) (string, error) {
	data, binaries := filepath.Join(staging, "data"), filepath.Join(staging, "binaries")
	if err := os.Mkdir(data, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(version[:2]), 0o600); err != nil {
		return "", err
	}
	startErr := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).
		Port(0).
		CachePath(filepath.Join(staging, "archive")).
		RuntimePath(filepath.Join(staging, "runtime")).
		BinariesPath(binaries).
		DataPath(data).
		Logger(io.Discard)).Start()
	http.DefaultClient.CloseIdleConnections() // What the library has fetched with.
	for _, name := range []string{"bin/initdb", "bin/postgres", "share"} {
		if _, err := os.Stat(filepath.Join(binaries, name)); err != nil {
			return "", startErr
		}
	}
	return binaries, openTree(binaries)
}

// openTree lets every user read what this user can read, whatever the umask was: root's server runs as another.
func openTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Type()&os.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm()
		return os.Chmod(path, mode|(mode&0o500)>>3|(mode&0o500)>>6)
	})
}
