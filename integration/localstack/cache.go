package localstack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// CacheDir returns the directory that keeps downloaded servers and creates it if it is missing. It is
// CDC_RELAY_CACHE when that is set, otherwise the user's cache directory. For root it lies in the temporary directory,
// because the unprivileged user that runs PostgreSQL can usually not enter root's home.
func CacheDir() (string, error) {
	dir := os.Getenv("CDC_RELAY_CACHE")
	if dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("resolve CDC_RELAY_CACHE: %w", err)
		}
		return abs, os.MkdirAll(abs, 0o755)
	}
	if os.Getuid() == 0 {
		return ownedDir(filepath.Join(os.TempDir(), "cdc-relay-cache-0"))
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return ownedDir(filepath.Join(os.TempDir(), "cdc-relay-cache-"+strconv.Itoa(os.Getuid())))
	}
	dir = filepath.Join(base, "cdc-relay")
	return dir, os.MkdirAll(dir, 0o755)
}

// ownedDir creates a directory with a predictable name in a place where everybody may write, and refuses one that
// somebody else has put there: binaries from it are executed.
func ownedDir(dir string) (string, error) {
	if err := mkdirOpen(dir); err != nil && !os.IsExist(err) {
		return "", fmt.Errorf("create %s: %w", dir, err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("inspect %s: %w", dir, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("%s is not a directory that only this user can write: remove it, or set CDC_RELAY_CACHE or TMPDIR", dir)
	}
	return dir, nil
}

// mkdirOpen creates a directory that every user may enter, whatever the umask is.
func mkdirOpen(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}
