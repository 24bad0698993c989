package catalogtest

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

func TestTableFaults(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	db := open(t, env.URL)
	check := func(table string, columns ...string) error {
		t.Helper()
		name, err := catalog.ParseTableName(table)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.CheckTable(t.Context(), name, columns)
		return err
	}
	wantFault(t, check("outbox"), catalog.Configuration, "table public.outbox does not exist; next: run `cdc-relay init`")
	env.Exec(`CREATE SCHEMA sales`)
	env.Exec(`CREATE TABLE sales."Outbox" (id int, "Payload" json, g int GENERATED ALWAYS AS (id + 1) STORED, gone int)`)
	env.Exec(`ALTER TABLE sales."Outbox" DROP COLUMN gone`)
	env.Exec(`CREATE VIEW v AS SELECT 1 AS id`)
	env.Exec(`CREATE UNLOGGED TABLE u (id int)`)
	env.Exec(`CREATE TABLE none ()`)
	wantFault(t, check("outbox"), catalog.Configuration, `there is sales."Outbox"`)
	wantFault(t, check(`sales."Outbox"`, "id", "payload"), catalog.Configuration, `has no column payload (it has id, "Payload", g)`)
	wantFault(t, check(`sales."Outbox"`, "gone"), catalog.Configuration, "has no column gone")
	wantFault(t, check(`sales."Outbox"`, "g"), catalog.Configuration, "is generated")
	wantFault(t, check("v", "id"), catalog.Configuration, "public.v is a view")
	wantFault(t, check("u", "id"), catalog.Configuration, "unlogged")
	wantFault(t, check("none", "id"), catalog.Configuration, "has no column id")
	if err := check(`SALES."Outbox"`, "id", "Payload"); err != nil {
		t.Error(err)
	}
}

// publicationCase is a publication, with % for its name, and what there is to say
// about it.
type publicationCase struct {
	name, create string
	ignored      []catalog.TableName
	fault, warn  string
}

func TestPublicationFaults(t *testing.T) {
	t.Parallel()
	env, major := testenv.New(t, testenv.NoKafka()), testenv.Major()
	schema(t, env)
	db := open(t, env.URL)
	env.Exec(`CREATE TABLE public.none ()`)
	env.Exec(`CREATE TABLE public.extra (id int)`)
	const insertOnly = " WITH (publish = 'insert')"
	extra := catalog.TableName{Schema: "public", Name: "extra"}
	cases := []publicationCase{
		{name: "missing", create: "SELECT 1", fault: "does not exist; next: run `cdc-relay init`"},
		{name: "empty", create: "CREATE PUBLICATION %" + insertOnly, fault: "does not publish table public.outbox"},
		{name: "without the table", create: "CREATE PUBLICATION % FOR TABLE public.extra" + insertOnly, fault: "does not publish table public.outbox"},
		{name: "extra table", create: "CREATE PUBLICATION % FOR TABLE public.outbox, public.extra" + insertOnly, fault: "also publishes public.extra"},
		{name: "ignored table", create: "CREATE PUBLICATION % FOR TABLE public.outbox, public.extra" + insertOnly, ignored: []catalog.TableName{extra}},
		{name: "table without columns", create: "CREATE PUBLICATION % FOR TABLE public.outbox, public.none" + insertOnly, fault: "also publishes public.none"},
		{name: "all tables", create: "CREATE PUBLICATION % FOR ALL TABLES" + insertOnly, fault: "names its tables"},
		{name: "default operations", create: "CREATE PUBLICATION % FOR TABLE public.outbox", warn: "also publishes updates"},
		{name: "no inserts", create: "CREATE PUBLICATION % FOR TABLE public.outbox WITH (publish = 'delete')", fault: "does not publish inserts"},
		{name: "good", create: "CREATE PUBLICATION % FOR TABLE public.outbox" + insertOnly},
	}
	if major >= 15 {
		cases = append(cases, []publicationCase{
			{name: "row filter", create: "CREATE PUBLICATION % FOR TABLE public.outbox WHERE (type <> 'x')" + insertOnly, warn: "only those rows of public.outbox"},
			{name: "short column list", create: "CREATE PUBLICATION % FOR TABLE public.outbox (id, payload, aggregateid)" + insertOnly, fault: "leaves out column aggregatetype"},
			{name: "column list", create: "CREATE PUBLICATION % FOR TABLE public.outbox (id, payload, aggregateid, aggregatetype)" + insertOnly},
			{name: "schema", create: "CREATE PUBLICATION % FOR TABLES IN SCHEMA public" + insertOnly, fault: "also publishes"},
		}...)
	}
	for _, c := range cases {
		env.Exec(replace(c.create, env.Publication))
		_, warnings, err := db.CheckPublication(t.Context(), env.Publication, spec(env).Tables, c.ignored)
		t.Run(c.name, func(t *testing.T) {
			if c.fault != "" {
				wantFault(t, err, catalog.Configuration, c.fault)
			} else if err != nil {
				t.Error(err)
			}
			if c.warn != "" {
				wantWarning(t, warnings, "publication", c.warn)
			} else if len(warnings) > 0 {
				t.Errorf("unexpected warnings: %v", warnings)
			}
		})
		env.Exec("DROP PUBLICATION IF EXISTS " + env.Publication)
	}
}

// A partitioned table arrives under the name of its root or of its partitions.
func TestPartitions(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	env.Exec(`CREATE TABLE public.outbox (id int, day date) PARTITION BY RANGE (day)`)
	env.Exec(`CREATE TABLE public.y26 PARTITION OF public.outbox FOR VALUES FROM ('2026-01-01') TO ('2027-01-01') PARTITION BY RANGE (day)`)
	env.Exec(`CREATE TABLE public.leaf PARTITION OF public.y26 FOR VALUES FROM ('2026-01-01') TO ('2026-07-01')`)
	db := open(t, env.URL)
	root := []catalog.TableSpec{{Name: outbox, Required: []string{"id"}}}
	leaf := []catalog.TableSpec{{Name: catalog.TableName{Schema: "public", Name: "leaf"}, Required: []string{"id"}}}

	env.Exec("CREATE PUBLICATION " + env.Publication + " FOR TABLE public.outbox WITH (publish = 'insert')")
	_, _, err := db.CheckPublication(t.Context(), env.Publication, root, nil)
	wantFault(t, err, catalog.Configuration, "SET (publish_via_partition_root = true)")
	if _, _, err := db.CheckPublication(t.Context(), env.Publication, leaf, nil); err != nil {
		t.Error(err)
	}

	env.Exec("ALTER PUBLICATION " + env.Publication + " SET (publish_via_partition_root = true)")
	if _, _, err := db.CheckPublication(t.Context(), env.Publication, root, nil); err != nil {
		t.Error(err)
	}
	_, _, err = db.CheckPublication(t.Context(), env.Publication, leaf, nil)
	wantFault(t, err, catalog.Configuration, "set outbox.table to public.outbox")

	table, err := db.CheckTable(t.Context(), leaf[0].Name, []string{"id"})
	if err != nil || table.Root != outbox || table.Partitioned() {
		t.Errorf("leaf: %+v, %v", table, err)
	}
	table, err = db.CheckTable(t.Context(), outbox, []string{"id"})
	if err != nil || table.Root != outbox || !table.Partitioned() || len(table.Leaves) != 1 || table.Leaves[0] != leaf[0].Name {
		t.Errorf("root: %+v, %v", table, err)
	}
}
