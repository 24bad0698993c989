package localstack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// StandbyConfig says how a standby follows.
type StandbyConfig struct {
	// Slot is the physical replication slot that the standby has on its primary, and its name there. It is created if
	// need be. Default "standby".
	Slot string
	// Settings are put over those of the primary and of this package.
	Settings map[string]string
}

// StartStandby copies the running server and starts a physical standby, which follows it until one of them stops. From
// version 17 on the standby synchronizes failover slots. The caller closes it.
func (p *Postgres) StartStandby(ctx context.Context, cfg StandbyConfig) (*Postgres, error) {
	if cfg.Slot == "" {
		cfg.Slot = "standby"
	}
	dir, err := newRunDir("postgres-" + strconv.Itoa(p.cfg.Major))
	if err != nil {
		return nil, err
	}
	s := &Postgres{cfg: p.cfg, bin: p.bin, dir: dir}
	s.cfg.Settings = p.standbySettings(cfg)
	if s.port, err = ReservePort(); err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	if err := s.follow(ctx, p, cfg.Slot); err != nil {
		return nil, errors.Join(fmt.Errorf("create PostgreSQL %d standby: %w", p.cfg.Major, err), s.Close())
	}
	if err := s.Start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// standbySettings has the standby notice soon what happens: it would ask again only every five seconds.
func (p *Postgres) standbySettings(cfg StandbyConfig) map[string]string {
	settings := map[string]string{
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=postgres application_name=%s",
			p.port.Number(), PostgresUser, PostgresPassword, cfg.Slot),
		"primary_slot_name":            cfg.Slot,
		"hot_standby_feedback":         "on",
		"wal_retrieve_retry_interval":  "200ms",
		"wal_receiver_status_interval": "1s",
	}
	if p.cfg.Major >= 17 {
		settings["sync_replication_slots"] = "on"
	}
	merged := maps.Clone(p.cfg.Settings)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, settings)
	maps.Copy(merged, cfg.Settings)
	return merged
}

// follow makes the data directory of a standby of primary.
func (p *Postgres) follow(ctx context.Context, primary *Postgres, slot string) error {
	if err := ownedTree(p.SocketDir()); err != nil {
		return err
	}
	label, err := primary.backup(ctx, slot, p.DataDir())
	if err != nil {
		return err
	}
	if err := writeOwned(filepath.Join(p.DataDir(), "backup_label"), label); err != nil {
		return err
	}
	if err := writeOwned(filepath.Join(p.DataDir(), "standby.signal"), nil); err != nil {
		return err
	}
	return p.writeSettings()
}

// backup copies the data directory of the running server and returns the label that belongs to the copy. The write-ahead
// log is left out: the slot keeps it until the standby fetches it.
func (p *Postgres) backup(ctx context.Context, slot, to string) (label []byte, err error) {
	conn, err := pgx.Connect(ctx, p.SocketURL("postgres"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	const create = `SELECT pg_create_physical_replication_slot($1, true)
		WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)`
	if _, err := conn.Exec(ctx, create, slot); err != nil {
		return nil, fmt.Errorf("create slot %s: %w", slot, err)
	}
	start, stop := `SELECT pg_backup_start('standby', true)`, `SELECT labelfile FROM pg_backup_stop(false)`
	if p.cfg.Major < 15 {
		start, stop = `SELECT pg_start_backup('standby', true, false)`, `SELECT labelfile FROM pg_stop_backup(false, false)`
	}
	if _, err := conn.Exec(ctx, start); err != nil {
		return nil, fmt.Errorf("start the backup: %w", err)
	}
	if err := copyTree(p.DataDir(), to, notForStandbys); err != nil {
		return nil, fmt.Errorf("copy the data directory: %w", err)
	}
	if err := conn.QueryRow(ctx, stop).Scan(&label); err != nil {
		return nil, fmt.Errorf("stop the backup: %w", err)
	}
	return label, nil
}

// notForStandbys names what a base backup leaves out: the contents of some directories, and files of the running server.
func notForStandbys(path string) bool {
	switch filepath.Dir(path) {
	case "pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans":
		return true
	}
	return ofTheProcess(path)
}

// ofTheProcess names the files that say which process runs on a data directory.
func ofTheProcess(path string) bool { return path == "postmaster.pid" || path == "postmaster.opts" }

// Promote makes a running standby a primary, on a timeline of its own.
func (p *Postgres) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.SocketURL("postgres"))
	if err != nil {
		return fmt.Errorf("promote PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var promoted bool
	if err := conn.QueryRow(ctx, `SELECT pg_promote(true, 60)`).Scan(&promoted); err != nil {
		return fmt.Errorf("promote PostgreSQL: %w", err)
	}
	if !promoted {
		return errors.New("promote PostgreSQL: not done after a minute")
	}
	return nil
}

// Kill ends the server with all its processes, without a word, as a crash of its machine does, and waits until they
// have ended. What it has written stays.
func (p *Postgres) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil || !p.server.Running() {
		return nil
	}
	if err := killTree(p.server.PID()); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	<-p.server.Done()
	return nil
}

// Snapshot copies the data as they are at one moment, as a snapshot of a disk does: a running server stands still
// meanwhile. It returns the directory of the copy, which Close removes.
func (p *Postgres) Snapshot() (dir string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil && p.server.Running() {
		resume, err := stopTree(p.server.PID())
		defer resume()
		if err != nil {
			return "", fmt.Errorf("take a snapshot of PostgreSQL: %w", err)
		}
	}
	dir = p.dir.join("snapshot-" + strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := copyTree(p.DataDir(), dir, ofTheProcess); err != nil {
		return "", fmt.Errorf("take a snapshot of PostgreSQL: %w", err)
	}
	return dir, nil
}

// Restore puts a snapshot in the place of the data of the stopped server. It can be done more than once.
func (p *Postgres) Restore(snapshot string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil && p.server.Running() {
		return errors.New("restore PostgreSQL: the server is running")
	}
	if err := os.RemoveAll(p.DataDir()); err != nil {
		return fmt.Errorf("restore PostgreSQL: %w", err)
	}
	if err := copyTree(snapshot, p.DataDir(), ofTheProcess); err != nil {
		return fmt.Errorf("restore PostgreSQL: %w", err)
	}
	return nil
}

// ownedTree makes a directory that only the server's user may read.
func ownedTree(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return giveAway(path)
}

// copyTree copies regular files and directories for the server's user, but for those that skip names by their path
// within from. Files that vanish meanwhile are left out.
func copyTree(from, to string, skip func(path string) bool) error {
	return filepath.WalkDir(from, func(path string, entry os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, from), string(filepath.Separator))
		switch {
		case entry.IsDir() && skip(name):
			return filepath.SkipDir
		case skip(name), !entry.IsDir() && !entry.Type().IsRegular():
			return nil
		case entry.IsDir():
			return ownedTree(filepath.Join(to, name))
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return writeOwned(filepath.Join(to, name), text)
	})
}
