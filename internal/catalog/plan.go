package catalog

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Setup names what [DB.Init] sets up beside the tables of package migrations.
type Setup struct {
	Slot        string // must pass [ValidateSlotName]
	Publication string
	Tables      []TableName
	// Failover makes a failover slot on 17 and later: one of which standbys with
	// sync_replication_slots keep a copy. Older servers have none.
	Failover bool
	// SystemID and Timeline, from IDENTIFY_SYSTEM, are for a server on which the
	// role may not call pg_control_system (then [Server.SystemID] is empty).
	SystemID string
	Timeline uint32
}

// Found is what of a [Setup] exists already. The zero value, nothing known, is
// for printing a plan without a server.
type Found struct {
	Server      Server
	Publication *Publication
	Slot        *Slot
	Row         *SlotRow
	// Snapshot says that the role may call pg_log_standby_snapshot.
	Snapshot bool
}

// Statement is one step of a [Plan].
type Statement struct {
	Do      string // what it does, such as "create slot cdc_relay"
	Comment string // why, and what to know
	SQL     string // without the final semicolon
	Needs   string // the right that it takes
	// Waits says that it waits for transactions that run, so that no
	// statement_timeout applies.
	Waits bool
}

// failoverVersion is the first server version with failover slots.
const failoverVersion = 170000

// Plan is an ordered list of statements: what `init --print` prints is what
// `init` runs.
type Plan []Statement

// NewPlan returns the statements that are missing, in the order in which they
// must run: the publication before the slot, since a slot cannot decode through
// a publication that is younger than it. The error is a *[CheckError]: a slot
// that is known but gone is not made anew.
func NewPlan(s Setup, f Found) (Plan, error) {
	if err := ValidateSlotName(s.Slot); err != nil {
		return nil, slotFault(err.Error(), "set postgres.slot")
	}
	if f.Slot == nil && f.Row != nil {
		return nil, knownButGone(*f.Row)
	}
	if f.Slot != nil && f.Publication == nil {
		return nil, publicationGone(s, f)
	}
	plan := planPublication(s, f.Publication)
	if f.Slot == nil {
		if f.Server.Version != 0 && f.Server.Slots >= f.Server.MaxSlots {
			return nil, noSlotLeft(f.Server)
		}
		plan = append(plan, createSlot(s, f.Server.Version))
	} else if err := f.Slot.check(f.Server.Database, SlotRow{}); err != nil {
		return nil, err
	}
	if f.Row == nil {
		plan = append(plan, insertSlotRow(s))
	}
	if f.Slot == nil && f.Snapshot && s.Failover && f.Server.Version >= failoverVersion {
		plan = append(plan, Statement{
			Do:      "log a snapshot for standbys",
			Comment: "Lets standbys copy the new failover slot within seconds instead of at the next checkpoint.",
			SQL:     "SELECT pg_catalog.pg_log_standby_snapshot()",
			Needs:   "EXECUTE on pg_log_standby_snapshot()",
		})
	}
	return plan, nil
}

func noSlotLeft(s Server) error {
	return slotFault(fmt.Sprintf("all %d replication slots (max_replication_slots) are in use", s.MaxSlots),
		"drop one that nobody needs (SELECT slot_name, plugin, database, active FROM pg_replication_slots), or as a superuser: "+
			"ALTER SYSTEM SET max_replication_slots = "+strconv.Itoa(s.MaxSlots+10)+"; then restart PostgreSQL")
}

// publicationGone is the error for a slot without its publication. A new one would
// be younger than the slot, which then can never decode what lies before it:
// membership in a publication is looked up as of the change.
func publicationGone(s Setup, f Found) error {
	problem := fmt.Sprintf("publication %s does not exist, but slot %s does, and a slot cannot decode through a younger publication",
		spell(s.Publication), s.Slot)
	drop := "SELECT pg_drop_replication_slot(" + literal(s.Slot) + ")"
	next := "check postgres.publication; if nobody has used the slot yet, drop it (" + drop + ") and run `cdc-relay init`"
	if f.Row != nil {
		problem += fmt.Sprintf("; events committed between %s and %s can no longer be sent from the write-ahead log",
			f.Slot.Confirmed, f.Slot.WALEnd)
		next = "check postgres.publication; if it was dropped, make it again (" + createPublicationSQL(s.Publication, s.Tables) +
			"), send what is missing from the table, then step over the gap: SELECT pg_replication_slot_advance(" + literal(s.Slot) +
			", pg_current_wal_lsn())"
	}
	return &CheckError{Check: "publication", Problem: problem, Next: next, Class: Configuration}
}

func planPublication(s Setup, p *Publication) Plan {
	if p == nil {
		return Plan{{
			Do: "create publication " + spell(s.Publication),
			Comment: "Inserts only, so that no primary key is needed and the applications' UPDATE and DELETE are never\n" +
				"refused; partitions are published under the name of their root.",
			SQL:   createPublicationSQL(s.Publication, s.Tables),
			Needs: "ownership of the tables and CREATE on the database",
		}}
	}
	missing := slices.DeleteFunc(slices.Clone(s.Tables), func(t TableName) bool {
		_, ok := p.Table(t)
		return ok
	})
	if len(missing) == 0 {
		return nil
	}
	return Plan{{
		Do: "add " + joinNames(missing) + " to publication " + spell(s.Publication),
		Comment: "The lock waits for transactions that have written the table: on older minor versions the walsender\n" +
			"loses rows of a transaction that is open while its table joins a publication.",
		SQL:   alterTablesSQL(s.Publication, "ADD", missing),
		Needs: "ownership of the publication and of the tables",
		Waits: true, // as long as its lock_timeout lets it
	}}
}

func createSlot(s Setup, version int) Statement {
	st := Statement{
		Do: "create slot " + s.Slot,
		Comment: "Everything committed from here on is kept until cdc-relay confirms it. Waits for the transactions\n" +
			"that are running.",
		Needs: "the role attribute REPLICATION: ALTER ROLE … REPLICATION (Amazon RDS: GRANT rds_replication TO …)",
		Waits: true,
	}
	arguments := "false, false"
	switch {
	case s.Failover && version == 0:
		st.Comment += "\nOn PostgreSQL 17 and later add a fifth argument, true, for a failover slot."
	case s.Failover && version >= failoverVersion:
		st.Comment += "\nThe last argument makes it a failover slot."
		arguments = "false, false, true"
	}
	st.SQL = fmt.Sprintf("SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot(%s, '%s', %s)",
		literal(s.Slot), Plugin, arguments)
	return st
}

// insertSlotRow takes the consistent point from the slot, where a slot that has
// not been read yet still has it as its confirmed position. So it also adopts a
// slot that a DBA has made.
func insertSlotRow(s Setup) Statement {
	systemID, timeline := systemIDSQL, timelineSQL
	if s.SystemID != "" {
		systemID, timeline = literal(s.SystemID), strconv.FormatUint(uint64(s.Timeline), 10)
	}
	return Statement{
		Do:      "record slot " + s.Slot + " in public.cdc_relay_slots",
		Comment: "With this record a slot that has vanished is never made anew in silence.",
		SQL: `INSERT INTO public.cdc_relay_slots
       (slot, database, system_id, timeline, consistent_point, publications, history_id)
SELECT slot_name, database, ` + systemID + `,
       ` + timeline + `, confirmed_flush_lsn,
       ARRAY[` + literal(s.Publication) + `], ` + historySQL + `
  FROM pg_catalog.pg_replication_slots
 WHERE slot_name = ` + literal(s.Slot),
		Needs: "INSERT on public.cdc_relay_slots",
	}
}

func createPublicationSQL(name string, tables []TableName) string {
	return "CREATE PUBLICATION " + ident(name) + " FOR TABLE " + quotedList(tables) +
		" WITH (publish = 'insert', publish_via_partition_root = true)"
}

// alterPublicationSQL takes a lock first: on older minor versions a transaction
// that has written a table and is open while the publication is altered makes the
// walsender lose rows. The lock gives up after a while, since everybody who wants
// to write waits behind it.
func alterPublicationSQL(name, action string, tables []TableName) string {
	return "BEGIN; SET LOCAL lock_timeout = '5s'; LOCK TABLE " + quotedList(tables) + " IN SHARE ROW EXCLUSIVE MODE; " +
		"ALTER PUBLICATION " + ident(name) + " " + action + "; COMMIT"
}

// alterTablesSQL adds or drops tables; verb is ADD or DROP.
func alterTablesSQL(name, verb string, tables []TableName) string {
	return alterPublicationSQL(name, verb+" TABLE "+quotedList(tables), tables)
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
		title := strings.ToUpper(st.Do[:1]) + st.Do[1:] + ".\n"
		_, err := fmt.Fprintf(w, "-- %s\n%s;\n\n", strings.ReplaceAll(title+comment, "\n", "\n-- "), st.SQL)
		if err != nil {
			return fmt.Errorf("print the plan: %w", err)
		}
	}
	return nil
}

// DeadLetterGrants returns the statements that let a role keep dead letters and replay
// them.
func DeadLetterGrants(role string) []string {
	role = ident(role)
	return []string{
		"GRANT SELECT, INSERT, UPDATE ON public.cdc_relay_dead_letter TO " + role,
		"GRANT EXECUTE ON FUNCTION public.cdc_relay_dead_letter_put, public.cdc_relay_dead_letter_put_back, " +
			"public.cdc_relay_dead_letter_replay TO " + role,
	}
}

// PrintGrants writes, as a comment for a DBA, all that the role needs that runs
// cdc-relay once its tables, publication and slot are there. The rights for
// setting them up are named by each statement of the plan.
func PrintGrants(w io.Writer, role, database string, outbox []TableName) error {
	letters := strings.Join(DeadLetterGrants(role), ";\n--   ")
	tables := make([]string, len(outbox))
	for i, name := range outbox {
		tables[i] = name.Quoted()
	}
	role, database = ident(role), ident(database)
	_, err := fmt.Fprintf(w, `-- The role that runs cdc-relay needs no more than this; it needs no right on the outbox table.
--   CREATE ROLE %[1]s LOGIN REPLICATION PASSWORD '...';  -- Amazon RDS: GRANT rds_replication TO %[1]s
--   GRANT CONNECT ON DATABASE %[2]s TO %[1]s;
--   GRANT USAGE ON SCHEMA public TO %[1]s;
--   GRANT SELECT, INSERT, UPDATE ON public.cdc_relay_slots TO %[1]s;
--   %[3]s;
-- pg_hba.conf must let it connect to the database; the keyword replication is not for logical replication.
-- Of use, but not needed:
--   GRANT pg_read_all_stats TO %[1]s;  -- says who holds the slot
--   GRANT SELECT ON public.cdc_relay_migrations TO %[1]s;  -- for cdc-relay migrate status
--   GRANT DELETE ON public.cdc_relay_dead_letter TO %[1]s;  -- for dead_letter.retention and cdc-relay dlq purge
--   GRANT SELECT ON %[4]s TO %[1]s;  -- to replay a dead letter whose payload was too large to keep
`, role, database, letters, strings.Join(tables, ", "))
	if err != nil {
		return fmt.Errorf("print the grants: %w", err)
	}
	return nil
}
