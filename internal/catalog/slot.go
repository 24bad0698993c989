package catalog

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Plugin is the output plugin of the relay's slot.
const Plugin = "pgoutput"

// Holder is the walsender that has a slot. Only the process id is there when the
// role may not see other roles' sessions (pg_read_all_stats).
type Holder struct {
	PID             uint32
	ApplicationName string
	ClientAddr      string
	Since           time.Time // start of the session
	// SyncState is sync_state of pg_stat_replication: async for a relay; sync,
	// quorum or potential mean that commits wait, or may wait, for it.
	SyncState string
}

// String says who it is, for a log line or an error.
func (h Holder) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "process %d", h.PID)
	if h.ApplicationName != "" {
		fmt.Fprintf(&b, " (%s)", h.ApplicationName)
	}
	if h.ClientAddr != "" {
		fmt.Fprintf(&b, " from %s", h.ClientAddr)
	}
	if !h.Since.IsZero() {
		fmt.Fprintf(&b, " since %s", h.Since.UTC().Format(time.RFC3339))
	}
	return b.String()
}

// Slot is one replication slot. An LSN is 0 where the server has none, as the
// restart LSN of a lost slot.
type Slot struct {
	Name         string
	Plugin       string // "" for a physical slot
	Physical     bool
	Database     string // "" for a physical slot
	Temporary    bool
	TwoPhase     bool
	Failover     bool // 17 and later
	Synced       bool // a copy on a standby; 17 and later
	Active       bool
	Holder       Holder // when Active
	Restart      pglogrepl.LSN
	Confirmed    pglogrepl.LSN // confirmed_flush_lsn
	WALStatus    string        // reserved, extended, unreserved, lost
	Invalidation string        // invalidation_reason (17), "conflict" on 16; "" while valid
	// SafeWALBytes is how much WAL may still be written before the slot is in
	// danger of being lost, -1 when max_slot_wal_keep_size sets no limit.
	SafeWALBytes int64
	WALEnd       pglogrepl.LSN // the server's WAL write position, 0 on a standby
	Spill        Spill
}

// Spill counts what decoding for this slot has written to disk since the
// counters were reset: transactions larger than logical_decoding_work_mem.
type Spill struct {
	Transactions, Times, Bytes int64
	TotalTransactions          int64
	TotalBytes                 int64
}

// LagBytes is the distance from what is confirmed to the end of the WAL.
func (s Slot) LagBytes() int64 { return distance(s.Confirmed, s.WALEnd) }

// RetainedBytes is the WAL that the server keeps for the slot.
func (s Slot) RetainedBytes() int64 { return distance(s.Restart, s.WALEnd) }

func distance(from, to pglogrepl.LSN) int64 {
	if from == 0 || to < from {
		return 0
	}
	return int64(to - from)
}

// Lost reports whether the server has given the slot up for good.
func (s Slot) Lost() bool { return s.WALStatus == "lost" || s.Invalidation != "" }

// Columns that came with a later version are read through to_jsonb, which gives
// NULL for what the server does not have: one statement for every version.
const slotSQL = `
SELECT coalesce(s.plugin::text, ''), s.slot_type = 'physical', coalesce(s.database::text, ''), s.temporary, s.two_phase,
       coalesce((j ->> 'failover')::bool, false), coalesce((j ->> 'synced')::bool, false),
       s.active, coalesce(s.active_pid, 0)::int8,
       coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''), a.backend_start, coalesce(r.sync_state, ''),
       coalesce(s.restart_lsn, '0/0')::text, coalesce(s.confirmed_flush_lsn, '0/0')::text,
       coalesce(s.wal_status, ''),
       coalesce(j ->> 'invalidation_reason', CASE WHEN (j ->> 'conflicting')::bool THEN 'conflict' END, ''),
       coalesce(s.safe_wal_size, -1),
       CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_lsn()::text END,
       coalesce(t.spill_txns, 0), coalesce(t.spill_count, 0), coalesce(t.spill_bytes, 0),
       coalesce(t.total_txns, 0), coalesce(t.total_bytes, 0)
  FROM pg_catalog.pg_replication_slots s
 CROSS JOIN LATERAL to_jsonb(s) j
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
  LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
  LEFT JOIN pg_catalog.pg_stat_replication_slots t ON t.slot_name = s.slot_name
 WHERE s.slot_name = $1`

// Slot reads one slot, who holds it and how far it is behind, or reports that
// there is none of that name. It is cheap enough to be asked four times a second.
func (db *DB) Slot(ctx context.Context, name string) (Slot, bool, error) {
	scan := func(row pgx.CollectableRow) (Slot, error) {
		s := Slot{Name: name}
		var pid int64
		var since *time.Time
		err := row.Scan(&s.Plugin, &s.Physical, &s.Database, &s.Temporary, &s.TwoPhase, &s.Failover, &s.Synced,
			&s.Active, &pid, &s.Holder.ApplicationName, &s.Holder.ClientAddr, &since, &s.Holder.SyncState,
			&s.Restart, &s.Confirmed, &s.WALStatus, &s.Invalidation, &s.SafeWALBytes, &s.WALEnd,
			&s.Spill.Transactions, &s.Spill.Times, &s.Spill.Bytes, &s.Spill.TotalTransactions, &s.Spill.TotalBytes)
		s.Holder.PID = uint32(pid)
		if since != nil {
			s.Holder.Since = *since
		}
		return s, err
	}
	got, err := Query(ctx, db, "read slot "+name, scan, slotSQL, name)
	if err != nil || len(got) == 0 {
		return Slot{}, false, err
	}
	return got[0], true, nil
}
