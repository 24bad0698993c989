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
	got, err := Query(ctx, db, "read public.cdc_relay_slots", scan, slotRowSQL, slot)
	if err != nil || len(got) == 0 {
		return SlotRow{}, false, db.needsGrant(err)
	}
	return got[0], true, nil
}

// ErrNotHolder says that the walsender named in a call does not stream from the slot
// (any more), so that its relay has nothing to record.
var ErrNotHolder = errors.New("the slot is streamed by another connection")

// held is the condition that the walsender $2 streams from the slot $1: what a relay
// records is true only as long as it does, and a relay that has lost the slot and does
// not know it must not write over the next one's record.
const held = "slot = $1 AND EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND active_pid = $2)"

// UpdateConfirmed records a confirmed position with its timeline, provided that
// walsender streams from the slot, and returns the time that was recorded with it.
// clean is for the last one of a clean stop; a relay that starts streaming records
// clean = false first.
func (db *DB) UpdateConfirmed(ctx context.Context, slot string, walsender uint32, lsn pglogrepl.LSN, timeline uint32, clean bool,
) (time.Time, error) {
	const sql = `
UPDATE public.cdc_relay_slots
   SET confirmed = $3::text::pg_lsn, timeline = $4, clean_stop = $5, confirmed_at = now()
 WHERE ` + held + `
RETURNING confirmed_at`
	got, err := Query(ctx, db, "record the confirmed position", pgx.RowTo[time.Time], sql,
		slot, int64(walsender), lsn.String(), int64(timeline), clean)
	switch {
	case err != nil:
		return time.Time{}, db.needsGrant(err)
	case len(got) == 0:
		return time.Time{}, db.notHeld(ctx, slot)
	}
	return got[0], nil
}

// RenewHistory draws a new history id for a slot in place of old, so that nothing on
// the topics is taken for something that is in the log again, and returns it. It does
// so only while walsender streams from the slot.
func (db *DB) RenewHistory(ctx context.Context, slot string, walsender uint32, old string) (string, error) {
	const sql = `
UPDATE public.cdc_relay_slots SET history_id = ` + historySQL + `
 WHERE ` + held + ` AND history_id = $3
RETURNING history_id`
	got, err := Query(ctx, db, "renew the history", pgx.RowTo[string], sql, slot, int64(walsender), old)
	switch {
	case err != nil:
		return "", db.needsGrant(err)
	case len(got) == 0:
		return "", db.notHeld(ctx, slot)
	}
	return got[0], nil
}

// notHeld says why an update of the slot's row found nothing.
func (db *DB) notHeld(ctx context.Context, slot string) error {
	_, known, err := db.SlotRow(ctx, slot)
	switch {
	case err != nil:
		return err
	case !known:
		return noRow(slot)
	}
	return ErrNotHolder
}

// mayRecord fails as [DB.UpdateConfirmed] would for lack of a right, and changes
// nothing: who finds out with the slot in hand has kept it from somebody who can.
func (db *DB) mayRecord(ctx context.Context) error {
	_, err := db.Exec(ctx, "record the confirmed position", "UPDATE public.cdc_relay_slots SET confirmed = confirmed WHERE false")
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
	n, err := db.Exec(ctx, "accept the server", sql, slot)
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
