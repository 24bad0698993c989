package catalog

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Column is one column of a table.
type Column struct {
	Name      string
	Type      string // as format_type writes it
	NotNull   bool
	Generated bool // GENERATED ALWAYS AS (…), stored or virtual; an identity is not
}

// Table is what the catalog says about one table.
type Table struct {
	Name        TableName
	OID         uint32
	Kind        string // relkind: r ordinary, p partitioned, v view, …
	Persistence string // relpersistence: p permanent, u unlogged, t temporary
	// Root is the topmost partitioned table above a partition; Name otherwise.
	Root    TableName
	Leaves  []TableName // the partitions at the bottom of a partitioned table
	Columns []Column
}

// Partitioned reports whether the table is the root or a branch of partitions.
func (t Table) Partitioned() bool { return t.Kind == "p" }

// Column returns the column of that exact name.
func (t Table) Column(name string) (Column, bool) {
	i := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		return Column{}, false
	}
	return t.Columns[i], true
}

const tableSQL = `
SELECT c.oid, c.relkind::text, c.relpersistence::text,
       rn.nspname::text, r.relname::text,
       coalesce(p.schemas, '{}'), coalesce(p.names, '{}'),
       coalesce(a.names, '{}'), coalesce(a.types, '{}'), coalesce(a.notnull, '{}'), coalesce(a.generated, '{}')
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_class r ON r.oid = coalesce(pg_catalog.pg_partition_root(c.oid), c.oid)
  JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
  LEFT JOIN LATERAL (
       SELECT array_agg(attname::text ORDER BY attnum) AS names,
              array_agg(format_type(atttypid, atttypmod) ORDER BY attnum) AS types,
              array_agg(attnotnull ORDER BY attnum) AS notnull,
              array_agg(attgenerated <> '' ORDER BY attnum) AS generated
         FROM pg_catalog.pg_attribute
        WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) a ON true
  LEFT JOIN LATERAL (
       SELECT array_agg(ln.nspname::text ORDER BY l.oid) AS schemas, array_agg(l.relname::text ORDER BY l.oid) AS names
         FROM pg_catalog.pg_partition_tree(c.oid) pt
         JOIN pg_catalog.pg_class l ON l.oid = pt.relid
         JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace
        WHERE c.relkind = 'p' AND pt.isleaf) p ON true
 WHERE n.nspname = $1 AND c.relname = $2`

// Table reads one table, or reports that there is no relation of that name.
func (db *DB) Table(ctx context.Context, name TableName) (Table, bool, error) {
	scan := func(row pgx.CollectableRow) (Table, error) {
		t := Table{Name: name}
		var leafSchemas, leaves, names, types []string
		var notNull, generated []bool
		err := row.Scan(&t.OID, &t.Kind, &t.Persistence, &t.Root.Schema, &t.Root.Name,
			&leafSchemas, &leaves, &names, &types, &notNull, &generated)
		if err != nil {
			return Table{}, err
		}
		for i := range leaves {
			t.Leaves = append(t.Leaves, TableName{leafSchemas[i], leaves[i]})
		}
		for i := range names {
			t.Columns = append(t.Columns, Column{names[i], types[i], notNull[i], generated[i]})
		}
		return t, nil
	}
	got, err := Query(ctx, db, "read table "+name.String(), scan, tableSQL, name.Schema, name.Name)
	if err != nil || len(got) == 0 {
		return Table{}, false, err
	}
	return got[0], true, nil
}

// CheckTable reads one table and checks that it is one whose inserts can be
// decoded and that it has every required column (exact names).
func (db *DB) CheckTable(ctx context.Context, name TableName, required []string) (Table, error) {
	t, found, err := db.Table(ctx, name)
	if err != nil {
		return Table{}, err
	}
	if !found {
		return Table{}, &CheckError{
			Check:   "table",
			Problem: fmt.Sprintf("table %s does not exist", name),
			Next:    db.elsewhere(ctx, name),
			Class:   Configuration,
		}
	}
	return t, t.Check(required)
}

// elsewhere is the next step for a missing table: another schema or another case
// in which the name does exist, or else how to create it.
func (db *DB) elsewhere(ctx context.Context, name TableName) string {
	const similarSQL = `
SELECT n.nspname::text, c.relname::text
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE lower(c.relname) = lower($1) AND c.relkind IN ('r', 'p')
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
 ORDER BY 1, 2 LIMIT 5`
	next := "set outbox.table to the table that the applications insert into"
	if name == (TableName{"public", "outbox"}) {
		next = "run `cdc-relay init` (or `cdc-relay migrate up`) to create it, or " + next
	}
	similar, err := Query(ctx, db, "look for the table", pgx.RowToStructByPos[TableName], similarSQL, name.Name)
	if err != nil || len(similar) == 0 {
		return next
	}
	return next + "; there is " + joinNames(similar)
}

func joinNames(names []TableName) string {
	spelled := make([]string, len(names))
	for i, n := range names {
		spelled[i] = n.String()
	}
	return strings.Join(spelled, ", ")
}

var kinds = map[string]string{
	"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index", "I": "an index",
	"c": "a composite type",
}

// Check checks that inserts into the table can be decoded and that it has every
// required column. The error is a *[CheckError].
func (t Table) Check(required []string) error {
	fail := func(problem, next string) error {
		return &CheckError{Check: "table", Problem: problem, Next: next, Class: Configuration}
	}
	if t.Kind != "r" && t.Kind != "p" {
		kind := kinds[t.Kind]
		if kind == "" {
			kind = "not a table"
		}
		return fail(fmt.Sprintf("%s is %s, and only inserts into tables can be decoded", t.Name, kind),
			"set outbox.table to the table that the applications insert into")
	}
	if t.Persistence != "p" {
		return fail(fmt.Sprintf("table %s is unlogged or temporary, so its rows are not in the write-ahead log", t.Name),
			"ALTER TABLE "+t.Name.Quoted()+" SET LOGGED")
	}
	for _, name := range required {
		c, ok := t.Column(name)
		if !ok {
			return fail(fmt.Sprintf("table %s has no column %s (it has %s)", t.Name, spell(name), t.columnNames()),
				"map the column that it does have in outbox.columns (or name it in routing), or add the missing one to the table")
		}
		if c.Generated {
			return fail(fmt.Sprintf("column %s of table %s is generated, and generated columns are not published", spell(name), t.Name),
				"make it an ordinary column that the application or a trigger fills")
		}
	}
	return nil
}

func (t Table) columnNames() string {
	names := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		names[i] = spell(c.Name)
	}
	return strings.Join(names, ", ")
}
