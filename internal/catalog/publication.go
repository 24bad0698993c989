package catalog

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// PublishedTable is one table as a publication sends it: with
// publish_via_partition_root the root, else each leaf.
type PublishedTable struct {
	Name    TableName
	Columns []string // nil before 15, where every column is sent
	Filter  string   // row filter, "" for none
}

// Publication is one publication with everything it publishes.
type Publication struct {
	Name      string
	Owner     string
	AllTables bool
	Insert    bool
	Update    bool
	Delete    bool
	Truncate  bool
	ViaRoot   bool // publish_via_partition_root
	Tables    []PublishedTable
}

// Column lists and row filters came with 15; to_jsonb gives NULL for a column
// that the view of an older server does not have.
const publicationSQL = `
SELECT p.pubowner::regrole::text, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
       coalesce(t.schemaname::text, ''), coalesce(t.tablename::text, ''),
       (SELECT array_agg(x) FROM jsonb_array_elements_text(nullif(to_jsonb(t) -> 'attnames', 'null')) x),
       coalesce(to_jsonb(t) ->> 'rowfilter', '')
  FROM pg_catalog.pg_publication p
  LEFT JOIN pg_catalog.pg_publication_tables t ON t.pubname = p.pubname
 WHERE p.pubname = $1
 ORDER BY t.schemaname, t.tablename`

// Publication reads one publication and what it publishes, in one statement that
// is cheap enough to be asked every few seconds.
func (db *DB) Publication(ctx context.Context, name string) (Publication, bool, error) {
	p := Publication{Name: name}
	scan := func(row pgx.CollectableRow) (PublishedTable, error) {
		var t PublishedTable
		err := row.Scan(&p.Owner, &p.AllTables, &p.Insert, &p.Update, &p.Delete, &p.Truncate, &p.ViaRoot,
			&t.Name.Schema, &t.Name.Name, &t.Columns, &t.Filter)
		return t, err
	}
	rows, err := Query(ctx, db, "read publication "+spell(name), scan, publicationSQL, name)
	if err != nil || len(rows) == 0 {
		return Publication{}, false, err
	}
	p.Tables = slices.DeleteFunc(rows, func(t PublishedTable) bool { return t.Name.Name == "" })
	return p, true, nil
}

// Table returns how the publication sends the table, if it does.
func (p Publication) Table(name TableName) (PublishedTable, bool) {
	i := slices.IndexFunc(p.Tables, func(t PublishedTable) bool { return t.Name == name })
	if i < 0 {
		return PublishedTable{}, false
	}
	return p.Tables[i], true
}

// TableSpec is a configured table and the columns that must arrive from it.
type TableSpec struct {
	Name     TableName
	Required []string // exact column names
}

// CheckPublication reads the publication and checks that it sends the inserts of
// every configured table with every required column, and of no table that is
// neither configured nor ignored. When all is well it costs one statement.
func (db *DB) CheckPublication(ctx context.Context, name string, tables []TableSpec, ignored []TableName) (Publication, []Warning, error) {
	p, found, err := db.Publication(ctx, name)
	if err != nil {
		return Publication{}, nil, err
	}
	if !found {
		return Publication{}, nil, &CheckError{
			Check:   "publication",
			Problem: fmt.Sprintf("publication %s does not exist", spell(name)),
			Next:    "run `cdc-relay init`, or as the owner of the tables: " + createPublicationSQL(name, specNames(tables)),
			Class:   Configuration,
			Gap:     true,
		}
	}
	for _, t := range tables {
		sent, ok := p.Table(t.Name)
		if !ok {
			return p, nil, db.unpublished(ctx, p, t.Name)
		}
		if _, missing := sent.lacks(t.Required); missing {
			// The list of columns is also short when the table has no such column.
			if _, err := db.CheckTable(ctx, t.Name, t.Required); err != nil {
				return p, nil, err
			}
		}
	}
	warnings, err := p.check(tables, ignored)
	return p, warnings, err
}

// unpublished says why the publication does not send a table under its own name.
func (db *DB) unpublished(ctx context.Context, p Publication, name TableName) error {
	t, found, err := db.Table(ctx, name)
	if err != nil {
		return err
	}
	_, rootSent := p.Table(t.Root)
	switch {
	case found && t.Partitioned() && p.sendsLeafOf(t):
		return p.gap(fmt.Sprintf("publishes the partitions of %s under their own names", name),
			"as the owner: "+alterPublicationSQL(p.Name, "SET (publish_via_partition_root = true)", []TableName{name}))
	case found && t.Root != name && rootSent:
		return p.gap(fmt.Sprintf("publishes the rows of partition %s under the name of its root %s", name, t.Root),
			"set outbox.table to "+t.Root.String())
	}
	return p.gap(fmt.Sprintf("does not publish table %s", name),
		"run `cdc-relay init`, or as the owner: "+alterTablesSQL(p.Name, "ADD", []TableName{name}))
}

func (p Publication) sendsLeafOf(t Table) bool {
	return slices.ContainsFunc(t.Leaves, func(leaf TableName) bool {
		_, ok := p.Table(leaf)
		return ok
	})
}

func specNames(tables []TableSpec) []TableName {
	names := make([]TableName, len(tables))
	for i, t := range tables {
		names[i] = t.Name
	}
	return names
}

// check is [DB.CheckPublication] for a publication that sends every table.
func (p Publication) check(tables []TableSpec, ignored []TableName) ([]Warning, error) {
	insertOnly := "as the owner: " + alterPublicationSQL(p.Name, "SET (publish = 'insert')", specNames(tables))
	if !p.Insert {
		return nil, p.gap("does not publish inserts", insertOnly)
	}
	var warnings []Warning
	if p.Update || p.Delete || p.Truncate {
		warnings = append(warnings, Warning{
			Check: "publication",
			Problem: fmt.Sprintf("publication %s also publishes updates, deletes or truncates: cdc-relay ignores them, "+
				"and on a table without primary key the applications' own UPDATE and DELETE fail", spell(p.Name)),
			Next: insertOnly,
		})
	}
	for _, t := range tables {
		sent, _ := p.Table(t.Name)
		if err := p.checkColumns(sent, t); err != nil {
			return warnings, err
		}
		if sent.Filter != "" {
			warnings = append(warnings, Warning{
				Check:   "publication",
				Problem: fmt.Sprintf("publication %s sends only those rows of %s that match %s", spell(p.Name), t.Name, sent.Filter),
			})
		}
	}
	return warnings, p.checkStrangers(specNames(tables), ignored)
}

func (p Publication) fail(problem, next string) error { return p.fault(problem, next, false) }

// gap is fail for a fault that keeps rows out of the stream.
func (p Publication) gap(problem, next string) error { return p.fault(problem, next, true) }

func (p Publication) fault(problem, next string, gap bool) error {
	return &CheckError{
		Check:   "publication",
		Problem: fmt.Sprintf("publication %s %s", spell(p.Name), problem),
		Next:    next,
		Class:   Configuration,
		Gap:     gap,
	}
}

// lacks returns the first required column that is not sent.
func (t PublishedTable) lacks(required []string) (string, bool) {
	if t.Columns == nil {
		return "", false
	}
	i := slices.IndexFunc(required, func(c string) bool { return !slices.Contains(t.Columns, c) })
	if i < 0 {
		return "", false
	}
	return required[i], true
}

// checkColumns checks a column list against the required columns.
func (p Publication) checkColumns(sent PublishedTable, t TableSpec) error {
	c, missing := sent.lacks(t.Required)
	if !missing {
		return nil
	}
	name := []TableName{t.Name}
	return p.fail(fmt.Sprintf("has a column list for table %s that leaves out column %s", t.Name, spell(c)),
		"as the owner, take the list away (or give one with every mapped column): "+
			alterPublicationSQL(p.Name, "DROP TABLE "+quotedList(name)+"; ALTER PUBLICATION "+ident(p.Name)+" ADD TABLE "+quotedList(name), name))
}

// checkStrangers refuses tables that nobody configured: an insert into one of
// them would halt the relay, since a renamed outbox would else be lost in
// silence.
func (p Publication) checkStrangers(configured, ignored []TableName) error {
	var strangers []TableName
	for _, t := range p.Tables {
		if !slices.Contains(configured, t.Name) && !slices.Contains(ignored, t.Name) {
			strangers = append(strangers, t.Name)
		}
	}
	if len(strangers) == 0 {
		return nil
	}
	next := "add the table to outbox.table, or to outbox.ignored_tables if its inserts are not meant for Kafka, or as the owner: " +
		alterTablesSQL(p.Name, "DROP", strangers)
	if p.AllTables {
		next = "use a publication that names its tables: " + createPublicationSQL(p.Name+"_outbox", configured)
	}
	shown := strangers[:min(len(strangers), 5)]
	more := ""
	if n := len(strangers) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return p.fail(fmt.Sprintf("also publishes %s%s, which outbox.table does not name", joinNames(shown), more), next)
}
