package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// SlotRow is the relay's own record of a slot, one row of public.cdc_relay_slots.
// It lives in the database and so fails over with it; the slot may not.
type SlotRow struct {
	Slot         string
	Database     string
	SystemID     string // of the cluster that the slot was made on
	Timeline     uint32 // of Confirmed, at first of ConsistentPoint
	Consistent   pglogrepl.LSN
	Publications []string
	// HistoryID names one unbroken history of the slot; records carry its hash.
	HistoryID string
	// BackfillState is none, running or done. Nothing is streamed while it is
	// running.
	BackfillState string
	Confirmed     pglogrepl.LSN // 0 until the first time
	ConfirmedAt   time.Time     // zero until the first time
	// CleanStop says that Confirmed was written at a clean stop, so that the slot
	// must stand exactly there. Otherwise it may be up to a minute further.
	CleanStop bool
}

const slotRowSQL = `
SELECT slot, database, system_id, timeline, consistent_point::text, publications, history_id, backfill_state,
       coalesce(confirmed, '0/0')::text, confirmed_at, clean_stop
  FROM public.cdc_relay_slots WHERE slot = $1`

// SlotRow reads the relay's own record of a slot, if there is one.
func (db *DB) SlotRow(ctx context.Context, slot string) (SlotRow, bool, error) {
	scan := func(row pgx.CollectableRow) (SlotRow, error) {
		var r SlotRow
		var timeline int64
		var at *time.Time
		err := row.Scan(&r.Slot, &r.Database, &r.SystemID, &timeline, &r.Consistent, &r.Publications, &r.HistoryID,
			&r.BackfillState, &r.Confirmed, &at, &r.CleanStop)
		r.Timeline = uint32(timeline)
		if at != nil {
			r.ConfirmedAt = *at
		}
		return r, err
	}
	got, err := query(ctx, db, "read public.cdc_relay_slots", scan, slotRowSQL, slot)
	if err != nil || len(got) == 0 {
		return SlotRow{}, false, db.needsGrant(err)
	}
	return got[0], true, nil
}

// UpdateConfirmed records a confirmed position with its timeline. clean is for
// the last one of a clean stop; a relay that starts streaming records clean =
// false first.
func (db *DB) UpdateConfirmed(ctx context.Context, slot string, lsn pglogrepl.LSN, timeline uint32, clean bool) error {
	const sql = `
UPDATE public.cdc_relay_slots
   SET confirmed = $2::text::pg_lsn, timeline = $3, clean_stop = $4, confirmed_at = now()
 WHERE slot = $1`
	n, err := db.exec(ctx, "record the confirmed position", sql, slot, lsn.String(), int64(timeline), clean)
	if err == nil && n == 0 {
		return noRow(slot)
	}
	return db.needsGrant(err)
}

// needsGrant completes the error of a statement on the relay's own table with the
// SQL that gives the rights; see [PrintGrants].
func (db *DB) needsGrant(err error) error {
	var e *CheckError
	if errors.As(err, &e) && e.Class == Privilege {
		role := ident(db.conn.Config().User)
		e.Next = "as the owner of the schema: GRANT USAGE ON SCHEMA public TO " + role +
			"; GRANT SELECT, INSERT, UPDATE ON public.cdc_relay_slots TO " + role
	}
	return err
}

func noRow(slot string) error {
	return &CheckError{
		Check:   "state",
		Problem: "public.cdc_relay_slots has no row for slot " + slot + " any more",
		Next:    "stop whoever deletes from public.cdc_relay_slots and run `cdc-relay init`",
		Class:   Configuration,
	}
}

// AcceptServer binds a slot's row to the server that it is on now, after a
// [SlotRow.CheckSystem] that failed for a reason the operator knows, such as
// pg_upgrade. The history starts anew, so that no position from before is taken
// for one of this server.
func (db *DB) AcceptServer(ctx context.Context, slot string) error {
	const sql = `
UPDATE public.cdc_relay_slots
   SET system_id = ` + systemIDSQL + `, timeline = ` + timelineSQL + `, history_id = ` + historySQL + `,
       confirmed = NULL, confirmed_at = NULL, clean_stop = false
 WHERE slot = $1`
	n, err := db.exec(ctx, "accept the server", sql, slot)
	if err == nil && n == 0 {
		return noRow(slot)
	}
	return err
}

// What a row says about the server and its history, as the server computes it.
const (
	systemIDSQL = "(SELECT system_identifier::text FROM pg_catalog.pg_control_system())"
	timelineSQL = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8"
	historySQL  = "replace(gen_random_uuid()::text, '-', '')"
)
