package catalog

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Versions of PostgreSQL (major) that are supported. A newer one gets a warning,
// an older one is refused.
const (
	OldestVersion = 14
	NewestVersion = 18
)

// Server is what the relay needs to know about the server, read at one moment.
type Server struct {
	Version     int    // server_version_num, such as 180003
	VersionText string // such as "18.3"
	Database    string
	User        string
	WALLevel    string
	InRecovery  bool
	// SystemID is the cluster's identifier as IDENTIFY_SYSTEM spells it; "" when
	// the role may not read it.
	SystemID string
	// Timeline is the current timeline; 0 on a standby.
	Timeline uint32
	// WALEnd is the current WAL write position; 0 on a standby.
	WALEnd pglogrepl.LSN

	MaxSlots, Slots     int // max_replication_slots, slots that exist
	MaxSenders, Senders int // max_wal_senders, walsenders that run

	SynchronousStandbyNames  string
	SynchronizedStandbySlots string // "" before 17
	MaxSlotWALKeepBytes      int64  // max_slot_wal_keep_size; -1 is unlimited
	WALSenderTimeoutMillis   int64
	IdleSlotTimeoutSeconds   int64 // idle_replication_slot_timeout; 0 is off, and before 18

	// Pooled says that the backend is not the one that the connection was opened
	// to: a connection pooler is in between.
	Pooled bool
}

// Major returns the major version, such as 18.
func (s Server) Major() int { return s.Version / 10000 }

// Settings are read through pg_settings in their base unit: current_setting
// would give a text such as 1min.
const serverSQL = `
SELECT current_setting('server_version_num')::int4,
       current_setting('server_version'),
       current_database()::text,
       current_user::text,
       current_setting('wal_level'),
       pg_is_in_recovery(),
       CASE WHEN has_function_privilege('pg_catalog.pg_control_system()', 'execute')
            THEN (SELECT system_identifier::text FROM pg_catalog.pg_control_system()) ELSE '' END,
       CASE WHEN pg_is_in_recovery() THEN '00000000'
            ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
       CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_lsn()::text END,
       current_setting('max_replication_slots')::int4,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int4,
       current_setting('max_wal_senders')::int4,
       (SELECT count(*) FROM pg_catalog.pg_stat_replication)::int4,
       current_setting('synchronous_standby_names'),
       coalesce(current_setting('synchronized_standby_slots', true), ''),
       (SELECT CASE WHEN setting::int8 < 0 THEN -1 ELSE setting::int8 * 1048576 END
          FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
       (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
       coalesce((SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'idle_replication_slot_timeout'), 0),
       pg_backend_pid()`

// Server reads the server facts.
func (db *DB) Server(ctx context.Context) (Server, error) {
	scan := func(row pgx.CollectableRow) (Server, error) {
		var s Server
		var timeline string
		var pid uint32
		err := row.Scan(&s.Version, &s.VersionText, &s.Database, &s.User, &s.WALLevel, &s.InRecovery,
			&s.SystemID, &timeline, &s.WALEnd, &s.MaxSlots, &s.Slots, &s.MaxSenders, &s.Senders,
			&s.SynchronousStandbyNames, &s.SynchronizedStandbySlots, &s.MaxSlotWALKeepBytes,
			&s.WALSenderTimeoutMillis, &s.IdleSlotTimeoutSeconds, &pid)
		if err != nil {
			return Server{}, err
		}
		// The key data that a pooler hands out at start-up are its own.
		s.Pooled = pid != db.conn.PgConn().PID()
		tl, err := strconv.ParseUint(timeline, 16, 32)
		if err != nil {
			return Server{}, fmt.Errorf("read timeline %q: %w", timeline, err)
		}
		s.Timeline = uint32(tl)
		return s, nil
	}
	got, err := Query(ctx, db, "read the server's settings", scan, serverSQL)
	if err != nil {
		return Server{}, err
	}
	return got[0], nil
}

// Check tells whether the relay can work on this server: version, recovery and
// wal_level, in this order. The error is a *[CheckError].
func (s Server) Check() ([]Warning, error) {
	if s.Major() < OldestVersion {
		return nil, &CheckError{
			Check:   "server",
			Problem: fmt.Sprintf("PostgreSQL %s is too old", s.VersionText),
			Next:    fmt.Sprintf("upgrade to PostgreSQL %d or newer", OldestVersion),
			Class:   Configuration,
		}
	}
	if s.InRecovery {
		return nil, &CheckError{
			Check:   "server",
			Problem: "the server is a standby (in recovery), and cdc-relay reads from a primary only",
			Next: "point postgres.url at the primary; with several hosts in it, add target_session_attrs=read-write " +
				"so that the primary is found by itself",
			Class: Configuration,
		}
	}
	if s.WALLevel != "logical" {
		return nil, &CheckError{
			Check:   "server",
			Problem: fmt.Sprintf("wal_level is %s, and logical decoding needs logical", s.WALLevel),
			Next:    "as a superuser: ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL",
			Class:   Configuration,
		}
	}
	return s.warnings(), nil
}

func (s Server) warnings() []Warning {
	var ws []Warning
	warn := func(problem, next string) { ws = append(ws, Warning{Check: "server", Problem: problem, Next: next}) }
	if s.Major() > NewestVersion {
		warn(fmt.Sprintf("PostgreSQL %s is newer than the newest version that cdc-relay was tested on (%d)",
			s.VersionText, NewestVersion), "")
	}
	if minor, ok := fixedMinors[s.Major()]; ok && s.Version%10000 < minor {
		warn(fmt.Sprintf("PostgreSQL %s can run out of memory, or (the oldest minor versions) lose rows of a slot, "+
			"while publications or tables are altered", s.VersionText),
			fmt.Sprintf("upgrade to %d.%d or newer", s.Major(), minor))
	}
	if s.Pooled {
		warn("a connection pooler is between cdc-relay and PostgreSQL",
			"connect directly to PostgreSQL, not through PgBouncer or another pooler")
	}
	if name, ok := synchronousName(s.SynchronousStandbyNames); ok {
		warn(fmt.Sprintf("synchronous_standby_names contains %s, which makes cdc-relay a synchronous standby: "+
			"every commit of every application waits for it", name),
			"as a superuser: name the real standbys in synchronous_standby_names, without * and without "+
				ApplicationName+", then SELECT pg_reload_conf()")
	}
	if s.Senders >= s.MaxSenders {
		warn(fmt.Sprintf("all %d walsenders (max_wal_senders) are in use", s.MaxSenders),
			"free one (SELECT pid, application_name, client_addr FROM pg_stat_replication), or as a superuser: "+
				"ALTER SYSTEM SET max_wal_senders = "+strconv.Itoa(s.MaxSenders+10)+"; then restart PostgreSQL")
	}
	return ws
}

// fixedMinors holds the first minor version of each major one with both fixes to
// what logical decoding does when a publication is altered beside an open
// transaction (release notes of these versions). 18 never had the faults.
var fixedMinors = map[int]int{14: 19, 15: 15, 16: 10, 17: 6}

// synchronousName looks for a name in synchronous_standby_names that matches the
// relay's replication connection. The setting is a list of names, bare or quoted,
// within an optional FIRST n (…) or ANY n (…); names match regardless of case.
func synchronousName(setting string) (string, bool) {
	if strings.Contains(setting, "*") {
		return "*", true
	}
	separators := func(r rune) bool { return strings.ContainsRune(` ,()"`+"\t\n", r) }
	for _, name := range strings.FieldsFunc(setting, separators) {
		if strings.EqualFold(name, ApplicationName) {
			return name, true
		}
	}
	return "", false
}
