package catalog

import (
	"context"
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
		return SlotRow{}, false, err
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

// knownButGone is the error for a row without its slot: what was committed since
// the recorded position may be missing from the topics, so no new slot is made in
// silence.
func knownButGone(row SlotRow) error {
	since := row.Confirmed
	if since == 0 {
		since = row.Consistent
	}
	return &CheckError{
		Check: "slot",
		Problem: "slot " + row.Slot + " does not exist, although public.cdc_relay_slots knows it: it was dropped, or did not survive " +
			"a failover; events committed after " + since.String() + " may be missing from the topics",
		Next: "find out what is missing, then accept the gap with DELETE FROM public.cdc_relay_slots WHERE slot = " + literal(row.Slot) +
			" and run `cdc-relay init`, which starts from now",
		Class: Configuration,
	}
}
