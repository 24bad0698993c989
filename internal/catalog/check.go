package catalog

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"
)

// Spec is what the configuration names and the database must have.
type Spec struct {
	Slot        string
	Publication string
	Tables      []TableSpec
	Ignored     []TableName // published, but not meant for Kafka
}

// Report is what [DB.Check] found. After an error it holds what was read before.
type Report struct {
	Server      Server
	Tables      []Table
	Publication Publication
	Slot        Slot
	Row         SlotRow
	Warnings    []Warning
}

// Check reads and checks everything that the relay needs before it asks for the
// slot, and stops at the first fault: server, tables, publication, slot. A slot
// that somebody holds is no fault; see [Slot.Active]. The error is a *[CheckError]
// or the context's own.
func (db *DB) Check(ctx context.Context, spec Spec) (Report, error) {
	var r Report
	var err error
	if r.Server, err = db.Server(ctx); err != nil {
		return r, err
	}
	if r.Warnings, err = r.Server.Check(); err != nil {
		return r, err
	}
	for _, t := range spec.Tables {
		table, err := db.CheckTable(ctx, t.Name, t.Required)
		if err != nil {
			return r, err
		}
		r.Tables = append(r.Tables, table)
	}
	var warnings []Warning
	r.Publication, warnings, err = db.CheckPublication(ctx, spec.Publication, spec.Tables, spec.Ignored)
	r.Warnings = append(r.Warnings, warnings...)
	if err != nil {
		return r, err
	}
	r.Slot, r.Row, warnings, err = db.CheckSlot(ctx, r.Server, spec.Slot, spec.Publication)
	r.Warnings = append(r.Warnings, warnings...)
	if err != nil {
		return r, err
	}
	return r, db.mayRecord(ctx)
}

// CheckSlot reads a slot and the relay's record of it and checks that they belong
// together, to this server and to the publication.
func (db *DB) CheckSlot(ctx context.Context, server Server, slot, publication string) (Slot, SlotRow, []Warning, error) {
	if err := ValidateSlotName(slot); err != nil {
		return Slot{}, SlotRow{}, nil, slotFault(err.Error(), "set postgres.slot")
	}
	row, known, err := db.SlotRow(ctx, slot)
	if err != nil {
		return Slot{}, row, nil, err
	}
	s, found, err := db.Slot(ctx, slot)
	if err != nil {
		return s, row, nil, err
	}
	if !found {
		return s, row, nil, missing(slot, row, known)
	}
	if known && server.SystemID != "" {
		if err := row.CheckSystem(server.SystemID, server.Timeline); err != nil {
			return s, row, nil, err
		}
	}
	if err := s.check(server.Database, row); err != nil {
		return s, row, nil, err
	}
	if !known {
		return s, row, nil, slotFault("slot "+slot+" exists, but public.cdc_relay_slots has no row for it",
			"run `cdc-relay init`, which records it and goes on from its position "+s.Confirmed.String())
	}
	return s, row, s.warnings(), row.check(publication)
}

func slotFault(problem, next string) error {
	return &CheckError{Check: "slot", Problem: problem, Next: next, Class: Configuration}
}

func missing(slot string, row SlotRow, known bool) error {
	if known {
		return knownButGone(row)
	}
	return slotFault("slot "+slot+" does not exist",
		"run `cdc-relay init` (or `cdc-relay run --init`), which creates it; only what is committed afterwards is sent")
}

// knownButGone is the error for a row without its slot: what was committed since
// the recorded position may be missing from the topics, so no new slot is made in
// silence.
func knownButGone(row SlotRow) error {
	return slotFault(
		fmt.Sprintf("slot %s does not exist, although public.cdc_relay_slots knows it: it was dropped, or did not survive a failover or a restore; "+
			"events committed after %s may be missing from the topics", row.Slot, row.lastKnown()),
		fmt.Sprintf("make sure that this is the right server and find out what is missing; then accept the gap with "+
			"DELETE FROM public.cdc_relay_slots WHERE slot = %s and run `cdc-relay init`, which starts from now", literal(row.Slot)))
}

// check checks the slot for itself.
func (s Slot) check(database string, row SlotRow) error {
	const another = "set postgres.slot to another name, or drop this slot if nobody uses it: SELECT pg_drop_replication_slot("
	drop := another + literal(s.Name) + ")"
	switch {
	case s.Physical:
		return slotFault("slot "+s.Name+" is a physical slot", drop)
	case s.Plugin != Plugin:
		return slotFault(fmt.Sprintf("slot %s uses the output plugin %s, not %s", s.Name, s.Plugin, Plugin), drop)
	case s.Database != database:
		return slotFault(fmt.Sprintf("slot %s belongs to database %s, not to %s", s.Name, s.Database, database),
			"set postgres.slot to another name, or the database in postgres.url to "+s.Database)
	case s.Temporary:
		return slotFault("slot "+s.Name+" is temporary and ends with the session that made it", "set postgres.slot to another name")
	case s.TwoPhase:
		return slotFault("slot "+s.Name+" was made with two_phase, so prepared transactions would be sent before they commit", drop)
	case s.Lost():
		return s.lost(row)
	}
	return nil
}

func (s Slot) lost(row SlotRow) error {
	after := s.Confirmed
	if after == 0 {
		after = row.lastKnown()
	}
	reason := ""
	if s.Invalidation != "" {
		reason = ", reason " + s.Invalidation
	}
	return slotFault(
		fmt.Sprintf("slot %s is lost (wal_status %s%s): the server has removed WAL that it needed; "+
			"events committed after %s may be missing from the topics", s.Name, s.WALStatus, reason, after),
		fmt.Sprintf("find out what is missing; then accept the gap with SELECT pg_drop_replication_slot(%[1]s); "+
			"DELETE FROM public.cdc_relay_slots WHERE slot = %[1]s; and run `cdc-relay init`, which starts from now", literal(s.Name)))
}

func (s Slot) warnings() []Warning {
	var ws []Warning
	if s.WALStatus == "unreserved" {
		ws = append(ws, Warning{
			Check:   "slot",
			Problem: "slot " + s.Name + " will be lost at the next checkpoint: it keeps more WAL than max_slot_wal_keep_size",
			Next:    "as a superuser: ALTER SYSTEM SET max_slot_wal_keep_size = -1, then SELECT pg_reload_conf()",
		})
	}
	return ws
}

// CheckSystem checks that positions of the slot mean the same on the server that was
// found: it is the same cluster, and no older than when the slot was used last. An
// older timeline is a former primary, or one that was restored, which misses what
// was sent since.
func (r SlotRow) CheckSystem(systemID string, timeline uint32) error {
	var problem string
	switch {
	case r.SystemID != systemID:
		problem = fmt.Sprintf("this is another server than the one that slot %s was set up on (system identifier %s, not %s)",
			r.Slot, systemID, r.SystemID)
	case r.Timeline > timeline:
		problem = fmt.Sprintf("this server is older than what slot %s was used on (timeline %d, not %d)", r.Slot, timeline, r.Timeline)
	default:
		return nil
	}
	return &CheckError{
		Check: "state", Problem: problem,
		Next:  "check postgres.url; if going on from this server is meant, run `cdc-relay init --accept-server`",
		Class: Configuration,
	}
}

func (r SlotRow) check(publication string) error {
	if r.BackfillState == "running" {
		return slotFault("the backfill of slot "+r.Slot+" is not finished", "finish it before anything is streamed")
	}
	if slices.Equal(r.Publications, []string{publication}) {
		return nil
	}
	was := ""
	if len(r.Publications) == 1 {
		was = r.Publications[0]
	}
	return &CheckError{
		Check:   "publication",
		Problem: fmt.Sprintf("slot %s was set up with publication %s, not with %s", r.Slot, spell(was), spell(publication)),
		Next: fmt.Sprintf("set postgres.publication back; or, since a slot cannot decode through a publication that is younger than it: "+
			"SELECT pg_current_wal_lsn(), let cdc-relay run with the old name until confirmed_flush_lsn of the slot has passed that, stop it, "+
			"UPDATE public.cdc_relay_slots SET publications = ARRAY[%s] WHERE slot = %s, and start with the new name",
			literal(publication), literal(r.Slot)),
		Class: Configuration,
	}
}

// lastKnown is the last position that the row knows the slot to have reached.
func (r SlotRow) lastKnown() pglogrepl.LSN { return max(r.Confirmed, r.Consistent) }
