package catalog

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Setup names what [DB.Init] sets up beside the tables of package migrations.
type Setup struct {
	Slot        string // must pass [ValidateSlotName]
	Publication string
	Tables      []TableName
	// Failover makes a failover slot on 17 and later: one that standbys with
	// sync_replication_slots keep a copy of. Ignored on older servers.
	Failover bool
	// SystemID and Timeline, from IDENTIFY_SYSTEM, are for a server on which the
	// role may not call pg_control_system (then [Server.SystemID] is empty).
	SystemID string
	Timeline uint32
}

// Found is what of a [Setup] exists already. The zero value, nothing known, is
// for printing a plan without a server.
type Found struct {
	Version     int // server_version_num; 0 when unknown
	Publication *Publication
	Slot        *Slot
	Row         *SlotRow
	// Snapshot says that the role may call pg_log_standby_snapshot (16 and later).
	Snapshot bool
}

// Statement is one step of a [Plan].
type Statement struct {
	Comment string // what it does and why
	SQL     string // without a final semicolon
	Needs   string // the right that it takes
	Waits   bool   // it may wait long, so that no statement_timeout applies
}

// Plan is an ordered list of statements: what `init --print` prints is what
// `init` runs.
type Plan []Statement

// NewPlan returns the statements that are missing, in the order in which they
// must run: the publication before the slot, since a slot cannot decode through
// a publication that is younger than it. The error is a *[CheckError], for a
// slot that is known but gone.
func NewPlan(s Setup, f Found) (Plan, error) {
	if err := ValidateSlotName(s.Slot); err != nil {
		return nil, &CheckError{Check: "slot", Problem: err.Error(), Next: "set postgres.slot", Class: Configuration}
	}
	if f.Slot == nil && f.Row != nil {
		return nil, knownButGone(*f.Row)
	}
	plan := planPublication(s, f)
	if f.Slot == nil {
		plan = append(plan, createSlot(s, f))
	}
	if f.Row == nil {
		plan = append(plan, insertSlotRow(s))
	}
	if f.Slot == nil && f.Snapshot && s.Failover {
		plan = append(plan, Statement{
			Comment: "Lets standbys copy the new failover slot within seconds instead of at the next checkpoint.",
			SQL:     "SELECT pg_catalog.pg_log_standby_snapshot()",
			Needs:   "EXECUTE on pg_log_standby_snapshot()",
		})
	}
	return plan, nil
}

func planPublication(s Setup, f Found) Plan {
	const needs = "ownership of the tables and CREATE on the database"
	if f.Publication == nil {
		return Plan{{
			Comment: "Inserts only, so that no primary key is needed and the applications' UPDATE and DELETE are never refused;\n" +
				"partitions are published under the name of their root.",
			SQL:   createPublicationSQL(s.Publication, s.Tables),
			Needs: needs,
		}}
	}
	missing := slices.DeleteFunc(slices.Clone(s.Tables), func(t TableName) bool {
		_, ok := f.Publication.Table(t)
		return ok
	})
	if len(missing) == 0 {
		return nil
	}
	return Plan{{
		Comment: "The lock waits for transactions that have written the table already: on older minor versions the\n" +
			"walsender loses rows of a transaction that is open while its table joins a publication.",
		SQL:   addTableSQL(s.Publication, missing),
		Needs: "ownership of the publication and of the tables",
	}}
}

func createSlot(s Setup, f Found) Statement {
	st := Statement{
		Comment: "Everything committed from here on is kept until cdc-relay confirms it. Waits for the transactions that\n" +
			"are running.",
		Needs: "the role attribute REPLICATION: ALTER ROLE … REPLICATION (Amazon RDS: GRANT rds_replication TO …)",
		Waits: true,
	}
	arguments := "false, false"
	switch {
	case s.Failover && f.Version == 0:
		st.Comment += "\nOn PostgreSQL 17 and later add a fifth argument, true: a failover slot."
	case s.Failover && f.Version >= 170000:
		arguments = "false, false, true"
		st.Comment += "\nThe last argument makes it a failover slot."
	}
	st.SQL = fmt.Sprintf("SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot(%s, '%s', %s)",
		literal(s.Slot), Plugin, arguments)
	return st
}

// insertSlotRow takes the consistent point from the slot, where a slot that has
// not been read yet still has it as its confirmed position. So it also adopts a
// slot that a DBA has made.
func insertSlotRow(s Setup) Statement {
	systemID := "(SELECT system_identifier::text FROM pg_catalog.pg_control_system())"
	timeline := "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8"
	if s.SystemID != "" {
		systemID, timeline = literal(s.SystemID), fmt.Sprint(s.Timeline)
	}
	return Statement{
		Comment: "The relay's own record of the slot. With it, a slot that has vanished is never made anew in silence.",
		SQL: `INSERT INTO public.cdc_relay_slots (slot, database, system_id, timeline, consistent_point, publications, history_id)
SELECT slot_name, database, ` + systemID + `,
       ` + timeline + `, confirmed_flush_lsn,
       ARRAY[` + literal(s.Publication) + `], replace(gen_random_uuid()::text, '-', '')
  FROM pg_catalog.pg_replication_slots
 WHERE slot_name = ` + literal(s.Slot),
		Needs: "INSERT on public.cdc_relay_slots",
	}
}

func createPublicationSQL(name string, tables []TableName) string {
	return "CREATE PUBLICATION " + ident(name) + " FOR TABLE " + quotedList(tables) +
		" WITH (publish = 'insert', publish_via_partition_root = true)"
}

// alterPublicationSQL takes the lock first: on older minor versions a transaction
// that has written a table and is open while the table joins or leaves a
// publication makes the walsender lose rows. The lock gives up after a while,
// since everybody who wants to write waits behind it.
func alterPublicationSQL(name, verb string, tables []TableName) string {
	list := quotedList(tables)
	return "BEGIN; SET LOCAL lock_timeout = '5s'; LOCK TABLE " + list + " IN SHARE ROW EXCLUSIVE MODE; " +
		"ALTER PUBLICATION " + ident(name) + " " + verb + " TABLE " + list + "; COMMIT"
}

func addTableSQL(name string, tables []TableName) string {
	return alterPublicationSQL(name, "ADD", tables)
}

func dropTableSQL(name string, tables []TableName) string {
	return alterPublicationSQL(name, "DROP", tables)
}

func quotedList(tables []TableName) string {
	quoted := make([]string, len(tables))
	for i, t := range tables {
		quoted[i] = t.Quoted()
	}
	return strings.Join(quoted, ", ")
}

// Print writes the plan as SQL that psql runs.
func (p Plan) Print(w io.Writer) error {
	for _, st := range p {
		comment := st.Comment
		if st.Needs != "" {
			comment += "\nNeeds " + st.Needs + "."
		}
		_, err := fmt.Fprintf(w, "-- %s\n%s;\n\n", strings.ReplaceAll(comment, "\n", "\n-- "), st.SQL)
		if err != nil {
			return fmt.Errorf("print the plan: %w", err)
		}
	}
	return nil
}

// Plan returns the statements that are missing on this server; see [NewPlan].
func (db *DB) Plan(ctx context.Context, s Setup) (Plan, error) {
	f, err := db.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return NewPlan(s, f)
}

// Init runs the statements that are missing, telling each one before it runs, and
// returns what it ran. Instances that do so at the same time take turns.
func (db *DB) Init(ctx context.Context, s Setup, before func(Statement)) (Plan, error) {
	if _, err := db.exec(ctx, "wait for another init to finish", "SELECT pg_advisory_lock($1)", initLock); err != nil {
		return nil, err
	}
	defer func() {
		_, _ = db.exec(context.WithoutCancel(ctx), "unlock", "SELECT pg_advisory_unlock($1)", initLock)
	}()
	plan, err := db.Plan(ctx, s)
	if err != nil {
		return nil, err
	}
	for i, st := range plan {
		before(st)
		if err := db.run(ctx, st); err != nil {
			return plan[:i], err
		}
	}
	return plan, nil
}

// initLock is the key of the advisory lock under which init works: "cdcrelay" in
// ASCII.
const initLock int64 = 0x63646372656c6179

func (db *DB) find(ctx context.Context, s Setup) (Found, error) {
	var f Found
	server, err := db.Server(ctx)
	if err != nil {
		return f, err
	}
	if _, err := server.Check(); err != nil {
		return f, err
	}
	f.Version = server.Version
	if p, found, err := db.Publication(ctx, s.Publication); err != nil {
		return f, err
	} else if found {
		f.Publication = &p
	}
	if slot, found, err := db.Slot(ctx, s.Slot); err != nil {
		return f, err
	} else if found {
		f.Slot = &slot
	}
	if row, found, err := db.SlotRow(ctx, s.Slot); err != nil {
		return f, err
	} else if found {
		f.Row = &row
	}
	return f, nil
}

// run executes one statement, which may be a whole transaction.
func (db *DB) run(ctx context.Context, st Statement) error {
	release, err := db.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	_, err = db.conn.PgConn().Exec(ctx, st.SQL).ReadAll()
	if err != nil {
		return queryError("run "+st.SQL, err)
	}
	return nil
}
