package localstack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/integration/process"
)

// The superuser of every server that this package starts.
const (
	PostgresUser     = "postgres"
	PostgresPassword = "postgres"
)

// PostgresConfig says which server to run and how. The zero value is the newest version with the settings that logical
// replication needs.
type PostgresConfig struct {
	// Major is the major version, 14 to 18. Default 18.
	Major int
	// NoSync turns fsync off: faster, and unsafe when the machine (not merely the server) crashes. Default: fsync on.
	NoSync bool
	// Settings are put into postgresql.conf after the settings of this package, so that they win.
	Settings map[string]string
	// HBA are lines of pg_hba.conf that are put before the lines of this package, so that they win. Those ask for a
	// password (scram-sha-256) over TCP and trust the unix socket.
	HBA []string
	// TLS makes the server accept TLS beside plain connections. Default: none.
	TLS *TLSFiles
	// Progress is told about the first download. May be nil.
	Progress Progress
}

// TLSFiles names PEM files that a server is to use. They are copied when it is started for the first time.
type TLSFiles struct {
	CertFile, KeyFile string
	// CAFile verifies client certificates. Empty: none is asked for.
	CAFile string
}

// StopMode is a way for PostgreSQL to stop.
type StopMode syscall.Signal

const (
	// Smart waits until all clients have gone.
	Smart = StopMode(syscall.SIGTERM)
	// Fast ends the clients' connections, waits for the walsenders to send what is left, and writes a checkpoint.
	Fast = StopMode(syscall.SIGINT)
	// Immediate stops without a checkpoint, like a crash.
	Immediate = StopMode(syscall.SIGQUIT)
)

// Postgres is one PostgreSQL server on 127.0.0.1 and in a unix socket directory. Its methods may be called from several
// goroutines; those that start and stop it wait for each other.
type Postgres struct {
	cfg  PostgresConfig
	bin  string
	dir  *runDir
	port *Port

	mu      sync.Mutex // held while the server is started or stopped; guards server
	server  *process.Process
	removed bool
}

// StartPostgres fetches the binaries if need be, creates a cluster of its own in a temporary directory, and starts a
// server on it. The caller closes it.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if cfg.Major == 0 {
		cfg.Major = PostgresMajors()[0]
	}
	home, err := FetchPostgres(ctx, cfg.Major, cfg.Progress)
	if err != nil {
		return nil, err
	}
	dir, err := newRunDir("postgres-" + strconv.Itoa(cfg.Major))
	if err != nil {
		return nil, err
	}
	p := &Postgres{cfg: cfg, bin: filepath.Join(home, "bin"), dir: dir}
	if p.port, err = ReservePort(); err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	if err := p.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("create PostgreSQL %d cluster: %w", cfg.Major, err), p.Close())
	}
	if err := p.Start(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// create runs initdb and writes the configuration.
func (p *Postgres) create(ctx context.Context) error {
	passwordFile := p.dir.join("password")
	for _, path := range []string{p.DataDir(), p.SocketDir()} {
		if err := ownedTree(path); err != nil {
			return err
		}
	}
	if err := writeOwned(passwordFile, []byte(PostgresPassword)); err != nil {
		return err
	}
	err := process.Run(ctx, process.Options{DropRoot: true, KnownUser: true}, p.dir.path, filepath.Join(p.bin, "initdb"),
		"--pgdata", p.DataDir(), "--username", PostgresUser, "--pwfile", passwordFile, "--no-sync",
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C")
	if err != nil {
		return err
	}
	if p.cfg.TLS != nil {
		if err := p.copyTLS(); err != nil {
			return err
		}
	}
	hba := append(append([]string{}, p.cfg.HBA...),
		"local all         all                scram-sha-256",
		"local replication all                scram-sha-256",
		"host  all         all 127.0.0.1/32   scram-sha-256",
		"host  replication all 127.0.0.1/32   scram-sha-256")
	if err := writeOwned(filepath.Join(p.DataDir(), "pg_hba.conf"), []byte(strings.Join(hba, "\n")+"\n")); err != nil {
		return err
	}
	return p.writeSettings()
}

// writeSettings appends to the postgresql.conf of initdb; of several lines for one setting the last counts.
func (p *Postgres) writeSettings() error {
	settings := []string{
		"listen_addresses = '127.0.0.1'",
		"port = " + strconv.Itoa(p.port.Number()),
		"unix_socket_directories = '" + p.SocketDir() + "'",
		"wal_level = logical",
		"max_replication_slots = 100",
		"max_wal_senders = 100",
		"max_connections = 200",
		"log_line_prefix = '%m [%p] %a '",
	}
	if p.cfg.NoSync {
		settings = append(settings, "fsync = off", "full_page_writes = off")
	}
	if p.cfg.TLS != nil {
		settings = append(settings, "ssl = on", "ssl_cert_file = 'server.crt'", "ssl_key_file = 'server.key'")
		if p.cfg.TLS.CAFile != "" {
			settings = append(settings, "ssl_ca_file = 'ca.crt'")
		}
	}
	for _, name := range sortedKeys(p.cfg.Settings) {
		settings = append(settings, name+" = '"+strings.ReplaceAll(p.cfg.Settings[name], "'", "''")+"'")
	}
	path := filepath.Join(p.DataDir(), "postgresql.conf")
	conf, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return writeOwned(path, append(conf, strings.Join(settings, "\n")+"\n"...))
}

func (p *Postgres) copyTLS() error {
	for name, source := range map[string]string{
		"server.crt": p.cfg.TLS.CertFile, "server.key": p.cfg.TLS.KeyFile, "ca.crt": p.cfg.TLS.CAFile,
	} {
		if source == "" {
			continue
		}
		text, err := os.ReadFile(source)
		if err != nil {
			return fmt.Errorf("read TLS file: %w", err)
		}
		if err := writeOwned(filepath.Join(p.DataDir(), name), text); err != nil {
			return err
		}
	}
	return nil
}

// writeOwned writes a file that only the server's user may read: it refuses a key file that others can read.
func writeOwned(path string, text []byte) error {
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	return giveAway(path)
}

// giveAway hands a file to the unprivileged user when this process is root.
func giveAway(path string) error {
	if os.Getuid() != 0 {
		return nil
	}
	return os.Chown(path, process.Unprivileged, process.Unprivileged)
}

// Start starts a stopped server on its old port, and returns when it accepts connections. It does nothing when the
// server is running.
func (p *Postgres) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil && p.server.Running() {
		return nil
	}
	logFile, err := os.OpenFile(p.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open PostgreSQL log: %w", err)
	}
	defer logFile.Close()
	cmd := exec.Command(filepath.Join(p.bin, "postgres"), "-D", p.DataDir())
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir.path, logFile, logFile
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	// An immediate stop, unlike SIGKILL, lets the server remove its shared memory.
	p.server, err = process.Start(cmd, process.Options{DropRoot: true, OnParentDeath: syscall.SIGQUIT})
	if err != nil {
		return err
	}
	if err := p.dir.noteProcess(p.server.PID()); err != nil {
		return err
	}
	return p.waitReady(ctx)
}

func (p *Postgres) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not ready after a minute"))
	defer cancel()
	for {
		conn, err := pgconn.Connect(ctx, p.SocketURL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		if !p.server.Running() {
			return fmt.Errorf("start PostgreSQL %d: %w: %s", p.cfg.Major, p.server.Err(), logTail(p.LogPath()))
		}
		if cause := pause(ctx, 20*time.Millisecond); cause != nil {
			return fmt.Errorf("start PostgreSQL %d: %w: %w: %s", p.cfg.Major, cause, err, logTail(p.LogPath()))
		}
	}
}

// Stop stops the server and keeps its data. When ctx ends before the server does, the server is killed and the error
// says so.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	return p.server.Stop(ctx, syscall.Signal(mode))
}

// Restart stops the server in Fast mode and starts it again.
func (p *Postgres) Restart(ctx context.Context) error {
	if err := p.Stop(ctx, Fast); err != nil {
		return err
	}
	return p.Start(ctx)
}

// Reload makes the server read its configuration files again. It does not wait for that.
func (p *Postgres) Reload() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server.Signal(syscall.SIGHUP)
}

// Close stops the server at once and removes its data. It may be called more than once.
func (p *Postgres) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := p.Stop(ctx, Immediate)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removed {
		return err
	}
	p.removed = true
	p.port.Release()
	return errors.Join(err, p.dir.remove())
}

// PID returns the process id of the postmaster, or 0 when it is not running.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil || !p.server.Running() {
		return 0
	}
	return p.server.PID()
}

// Major returns the major version.
func (p *Postgres) Major() int { return p.cfg.Major }

// Addr returns host and port of the TCP listener; both stay the same when the server restarts.
func (p *Postgres) Addr() string { return p.port.Addr() }

// URL returns a connection URL for the superuser over TCP, without TLS.
func (p *Postgres) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(PostgresUser, PostgresPassword), Host: p.Addr(),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// SocketURL returns a connection URL for the superuser over the unix socket.
func (p *Postgres) SocketURL(database string) string {
	query := url.Values{"host": {p.SocketDir()}, "port": {strconv.Itoa(p.port.Number())}}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(PostgresUser, PostgresPassword),
		Path: "/" + database, RawQuery: query.Encode(),
	}
	return u.String()
}

// SocketDir returns the directory of the unix socket.
func (p *Postgres) SocketDir() string { return p.dir.join("socket") }

// DataDir returns the data directory.
func (p *Postgres) DataDir() string { return p.dir.join("data") }

// LogPath returns the file that takes the server's log.
func (p *Postgres) LogPath() string { return p.dir.join("postgres.log") }
