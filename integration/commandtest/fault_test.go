package commandtest

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Mistakes in the configuration are found before anything is asked of a server.
func TestConfigurationFaults(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Run("unknown key", func(t *testing.T) {
		t.Parallel()
		path := file("relay.yaml", "postgres:\n  url: "+env.URL+"\nkafka:\n  brokers: ["+env.Brokers[0]+"]\n  kompression: zstd\n")
		refused(t, env.Run("run", "--config", path), 78, "relay.yaml:5: kafka.kompression: unknown key, did you mean kafka.compression?", "correct")
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	taken := listener.Addr().String()
	garbage := file("ca.pem", "no certificate")
	for name, tt := range map[string]struct {
		settings   testenv.Settings
		says, next string
	}{
		"bad url":           {testenv.Settings{"postgres.url": "postgres://app:sec%ret@db/app"}, "postgres.url", "postgres://user@host"},
		"bad port":          {testenv.Settings{"postgres.url": "postgres://db:port/app"}, "its port", "postgres://user@host"},
		"slot name":         {testenv.Settings{"postgres.slot": "Relay-1"}, `"Relay-1"`, "lower-case"},
		"template":          {testenv.Settings{"routing.topic": "a.{agregatetype}"}, "agregatetype", "outbox.columns"},
		"missing tls file":  {testenv.Settings{"kafka.tls.ca_file": "/nowhere/ca.pem"}, "kafka.tls.ca_file: open /nowhere/ca.pem", "kafka.tls"},
		"tls garbage":       {testenv.Settings{"kafka.tls.ca_file": garbage}, "kafka.tls.ca_file", "kafka.tls"},
		"sslrootcert":       {testenv.Settings{"postgres.url": env.URL + "&sslrootcert=/nowhere/root.pem&sslmode=verify-ca"}, "postgres.url", "files of sslrootcert"},
		"missing password":  {testenv.Settings{"postgres.password_file": "/nowhere/password"}, "postgres.password_file", ""},
		"port in use":       {testenv.Settings{"http.listen": taken}, "listen for http on " + taken, "http.listen"},
		"not an address":    {testenv.Settings{"http.listen": "9640"}, "http.listen", "host:port"},
		"nothing to send":   {testenv.Settings{"kafka.brokers": nil}, "kafka.brokers", "brokers"},
		"nothing to follow": {testenv.Settings{"postgres.url": nil}, "postgres.url", "--database-url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refuses(t, env, tt.settings, 78, tt.says, tt.next)
		})
	}
}

// fault is something that a database lacks, on a server that was set up and holds a row that is not sent yet.
type fault struct {
	name       string
	breaks     string // SQL; SLOT and DATABASE stand for the names
	settings   func(env *testenv.Env) testenv.Settings
	code       int
	says, next string
	cure       string // SQL
	init       bool   // the cure ends with init
	gap        bool   // the row is lost, as the message says
}

var faults = []fault{
	{
		name: "wrong password", code: 77, says: "28P01", next: "postgres.password_file",
		settings: func(env *testenv.Env) testenv.Settings {
			return testenv.Settings{"postgres.url": edit(env.URL, func(u *url.URL) { u.User = url.UserPassword("postgres", "wrong") })}
		},
	},
	{
		name: "no such database", code: 78, says: "does not exist", next: "postgres.url",
		settings: func(env *testenv.Env) testenv.Settings {
			return testenv.Settings{"postgres.url": edit(env.URL, func(u *url.URL) { u.Path = "/nowhere" })}
		},
	},
	{
		name: "missing table", breaks: `ALTER TABLE public.outbox RENAME TO events`, code: 78,
		says: "table public.outbox does not exist", next: "outbox.table",
		cure: `ALTER TABLE public.events RENAME TO outbox`,
	},
	{
		name: "missing column", breaks: `ALTER TABLE public.outbox RENAME payload TO body`, code: 78,
		says: "table public.outbox has no column payload", next: "outbox.columns",
		cure: `ALTER TABLE public.outbox RENAME body TO payload`,
	},
	{
		name: "publication without the table", breaks: `ALTER PUBLICATION SLOT DROP TABLE public.outbox`, code: 78,
		says: "does not publish table public.outbox", next: `ALTER PUBLICATION "SLOT" ADD TABLE "public"."outbox"`,
		cure: `ALTER PUBLICATION SLOT ADD TABLE public.outbox`,
	},
	{
		name: "publication missing", breaks: `DROP PUBLICATION SLOT`, code: 78,
		says: "publication SLOT does not exist", next: `CREATE PUBLICATION "SLOT" FOR TABLE "public"."outbox"`,
		cure: `CREATE PUBLICATION SLOT FOR TABLE public.outbox WITH (publish = 'insert', publish_via_partition_root)`,
	},
	{
		name: "table that is not configured", breaks: `CREATE TABLE t (); ALTER PUBLICATION SLOT ADD TABLE t`, code: 78,
		says: "also publishes public.t", next: "outbox.ignored_tables",
		cure: `ALTER PUBLICATION SLOT DROP TABLE t`,
	},
	{
		name: "another publication", breaks: `CREATE PUBLICATION SLOT_b FOR TABLE public.outbox WITH (publish = 'insert')`, code: 78,
		says: "was set up with publication SLOT", next: "set postgres.publication back",
		settings: func(env *testenv.Env) testenv.Settings {
			return testenv.Settings{"postgres.publication": env.Slot + "_b"}
		},
	},
	{
		name: "slot of another plugin", breaks: `SELECT pg_create_logical_replication_slot('SLOT_b', 'test_decoding')`, code: 78,
		says: "uses the output plugin test_decoding", next: "postgres.slot", settings: slotB,
	},
	{
		name: "physical slot", breaks: `SELECT pg_create_physical_replication_slot('SLOT_b')`, code: 78,
		says: "is a physical slot", next: "postgres.slot", settings: slotB, cure: `SELECT pg_drop_replication_slot('SLOT_b')`,
	},
	{
		name: "slot missing", code: 78, says: "slot SLOT_b does not exist", next: "cdc-relay init", settings: slotB,
	},
	{
		name: "slot without row", breaks: `DELETE FROM public.cdc_relay_slots`, code: 78,
		says: "public.cdc_relay_slots has no row for it", next: "cdc-relay init", init: true,
	},
	{
		name: "slot known but gone", breaks: `SELECT pg_drop_replication_slot('SLOT')`, code: 78,
		says: "may be missing from the topics", next: `DELETE FROM public.cdc_relay_slots WHERE slot = 'SLOT'`,
		cure: `DELETE FROM public.cdc_relay_slots WHERE slot = 'SLOT'`, init: true, gap: true,
	},
	{
		name: "state table missing", breaks: `ALTER TABLE public.cdc_relay_slots RENAME TO s`, code: 78,
		says: "public.cdc_relay_slots", next: "cdc-relay migrate up", cure: `ALTER TABLE public.s RENAME TO cdc_relay_slots`,
	},
}

func slotB(env *testenv.Env) testenv.Settings {
	return testenv.Settings{"postgres.slot": env.Slot + "_b"}
}

func edit(connString string, change func(*url.URL)) string {
	u, err := url.Parse(connString)
	if err != nil {
		return connString
	}
	change(u)
	return u.String()
}

// What a database lacks ends the relay with one message; what was committed before is sent once it is there again.
func TestDatabaseFaults(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.test(t)
		})
	}
}

func (f fault) test(t *testing.T) {
	env := testenv.New(t)
	fill := func(text string) string { return strings.ReplaceAll(text, "SLOT", env.Slot) }
	topic := env.CreateTopic("order", 1)
	prepare(t, env)
	insert(t, env, "before")
	run := func(sql string) {
		if _, err := env.Conn().PgConn().Exec(t.Context(), fill(sql)).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	run(f.breaks)
	var settings testenv.Settings
	if f.settings != nil {
		settings = f.settings(env)
	}
	refuses(t, env, settings, f.code, fill(f.says), fill(f.next))
	refused(t, env.Run("validate", "--live", "--config", env.WriteConfig(settings)), f.code, fill(f.says), fill(f.next))
	if f.gap { // nothing makes a new slot in silence
		refuses(t, env, settings, f.code, fill(f.says), fill(f.next), "--init")
		refused(t, env.Run("init", "--config", env.WriteConfig(settings)), f.code, fill(f.says), fill(f.next))
		if name := slot(t, env, "slot_name"); name != "" {
			t.Errorf("slot %s was made anew", name)
		}
	}
	run(f.cure)
	if f.init {
		prepare(t, env)
	}
	if f.gap {
		insert(t, env, "before")
	}
	if res := env.Run("run", "--once", "--timeout", "30s", "--config", env.WriteConfig(freePort)); res.Code != 0 {
		t.Errorf("run --once exits with %d: %s", res.Code, res.Stderr)
	}
	wantKeys(t, env, topic, "before")
}

// freePort lets commands that end by themselves listen anywhere.
var freePort = testenv.Settings{"http.listen": "127.0.0.1:0"}

// A slot of the name in another database of the cluster is not ours.
func TestSlotOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	other, env := testenv.New(t, testenv.NoKafka()), testenv.New(t)
	prepare(t, other)
	prepare(t, env)
	settings := testenv.Settings{"postgres.slot": other.Slot}
	says := "slot " + other.Slot + " belongs to database " + other.Slot
	refuses(t, env, settings, 78, says, "postgres.slot")
	refused(t, env.Run("init", "--config", env.WriteConfig(settings)), 78, says, "postgres.slot")
	if slot(t, other, "slot_name") == "" {
		t.Error("the other database's slot is gone")
	}
}
