package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// writeFile puts text into a file of the test and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// least is the smallest environment that makes a complete configuration.
var least = []string{"CDC_RELAY_POSTGRES_URL=postgres://h/db", "CDC_RELAY_KAFKA_BROKERS=b:9092"}

func TestDefaultsAreValid(t *testing.T) {
	got, err := Load(Source{Environ: least}, Everything)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Postgres.URL, want.Kafka.Brokers = "postgres://h/db", Names{"b:9092"}
	if diff := cmp.Diff(want, *got, cmpopts.IgnoreUnexported(Config{}, Postgres{})); diff != "" {
		t.Error(diff)
	}
}

// tables makes a list from schemas and names in turn.
func tables(names ...string) (list Tables) {
	for pair := range slices.Chunk(names, 2) {
		list = append(list, Table{catalog.TableName{Schema: pair[0], Name: pair[1]}})
	}
	return list
}

func TestLoadEveryForm(t *testing.T) {
	file := writeFile(t, "relay.yaml", `
postgres:
  url: host=h dbname=db
  wal_sender_timeout: 1m30s
  slot: 123
outbox:
  table: [public.outbox, '"Sales, EU".outbox']
  columns: {payload: body}
  ignored_tables: a, "b,c".d
kafka:
  brokers: ["[::1]:9092", b:9093]
  max_message_bytes: 2MiB
  create_topics: {partitions: 6, config: {retention.ms: "1000"}}
  tls: {}
  sasl:
limits: {in_flight_bytes: 1048576}
`)
	got, err := Load(Source{File: file}, Everything)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Postgres.URL = "host=h dbname=db"
	want.Postgres.WALSenderTimeout = 90 * time.Second
	want.Postgres.Slot = "123"
	want.Outbox.Table = tables("public", "outbox", "Sales, EU", "outbox")
	want.Outbox.Columns = map[string]string{"payload": "body"}
	want.Outbox.IgnoredTables = tables("public", "a", "b,c", "d")
	want.Kafka.Brokers = Names{"[::1]:9092", "b:9093"}
	want.Kafka.MaxMessageBytes = 2 << 20
	want.Kafka.CreateTopics = CreateTopics{Partitions: 6, Config: map[string]string{"retention.ms": "1000"}}
	want.Limits.InFlightBytes = 1 << 20
	if diff := cmp.Diff(want, *got, cmpopts.IgnoreUnexported(Config{}, Postgres{})); diff != "" {
		t.Error(diff)
	}
}

// someValues has a value for every key that differs from its default.
func someValues(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"postgres.url":                           "postgres://env/db",
		"postgres.slot":                          "env_slot",
		"postgres.publication":                   "env_publication",
		"postgres.wal_sender_timeout":            "7s",
		"postgres.failover_slot":                 "off",
		"postgres.password_file":                 writeFile(t, "pg", "pg-secret\n"),
		"outbox.table":                           `a, "b,c".d`,
		"outbox.columns":                         "{payload: body, tenant: org}",
		"outbox.header_columns":                  "{x-tenant: org}",
		"outbox.record_time":                     "created_at",
		"outbox.ignored_tables":                  "audit",
		"kafka.brokers":                          "x:1, y:2",
		"kafka.compression":                      "zstd",
		"kafka.max_message_bytes":                "512KiB",
		"kafka.max_request_bytes":                "32MiB",
		"kafka.transactional_id":                 "sales-relay",
		"kafka.create_topics.partitions":         "3",
		"kafka.create_topics.replication_factor": "2",
		"kafka.create_topics.config":             "{retention.ms: 1000}",
		"kafka.tls.enabled":                      "true",
		"kafka.tls.ca_file":                      "ca.pem",
		"kafka.tls.cert_file":                    "cert.pem",
		"kafka.tls.key_file":                     "key.pem",
		"kafka.tls.server_name":                  "kafka.internal",
		"kafka.sasl.mechanism":                   "PLAIN",
		"kafka.sasl.username":                    "user",
		"kafka.sasl.password":                    "~",
		"kafka.sasl.password_file":               writeFile(t, "sasl", "sasl-secret\n"),
		"routing.topic":                          "sales.{type}",
		"routing.key":                            "{id}",
		"resume.enabled":                         "false",
		"resume.max_records":                     "5000",
		"resume.max_bytes":                       "2MiB",
		"limits.in_flight_bytes":                 "1GiB",
		"retry.initial":                          "50ms",
		"retry.max":                              "5s",
		"breaker.window":                         "200",
		"breaker.share":                          "0.5",
		"dead_letter.max_value_bytes":            "1MiB",
		"dead_letter.retention":                  "720h",
		"on_poison":                              "halt",
		"on_unknown_topic":                       "dead_letter",
		"unknown_topic_grace":                    "1m",
		"max_attempts":                           "5",
		"http.listen":                            ":1",
		"log.level":                              "debug",
		"log.format":                             "json",
		"shutdown_timeout":                       "3s",
	}
}

// Every key can be set by its variable alone.
func TestEnvironmentSetsEveryKey(t *testing.T) {
	values := someValues(t)
	c := Default()
	l := &loader{config: &c, fields: fields(&c)}
	c.origins = map[string]string{}
	env := map[string]string{}
	for _, f := range l.fields {
		value, ok := values[f.key]
		if !ok {
			t.Errorf("%s: add a value to this test", f.key)
		}
		env[f.env()] = value
		delete(values, f.key)
	}
	for key := range values {
		t.Errorf("%s: no such key", key)
	}
	l.readEnviron(env)
	for _, p := range l.problems {
		t.Error(p)
	}
	unset := Default()
	before := fields(&unset)
	for i, f := range l.fields {
		if cmp.Equal(f.value.Interface(), before[i].value.Interface()) {
			t.Errorf("%s: %s=%s changed nothing", f.key, f.env(), env[f.env()])
		}
	}
	if c.Kafka.SASL.Password != "~" {
		t.Error("a password is not taken as it stands")
	}
}

// libpq is every PG* variable that pgx reads, with a value that must not win over ours.
var libpq = map[string]string{
	"PGHOST": "pg.host", "PGPORT": "1111", "PGDATABASE": "pgdatabase", "PGUSER": "pguser", "PGPASSWORD": "pgpassword",
	"PGAPPNAME": "pgappname", "PGSSLMODE": "disable", "PGCONNECT_TIMEOUT": "11", "PGTARGETSESSIONATTRS": "any", "PGOPTIONS": "-c geqo=off",
	"PGTZ": "UTC", "PGPASSFILE": "/nonexistent", "PGSSLNEGOTIATION": "postgres",
	"PGSSLSNI": "1", "PGMINPROTOCOLVERSION": "3.0", "PGMAXPROTOCOLVERSION": "3.0",
}

// TestPrecedence sets every source of the connection and of the brokers at once, then takes the
// strongest away, one after the other.
func TestPrecedence(t *testing.T) {
	for name, value := range libpq {
		t.Setenv(name, value) // pgx reads the environment of the process
	}
	environ := os.Environ()
	url := func(who string) string {
		return "postgres://" + who + ":" + who + "-password@" + who + ":5000/" + who
	}
	file := writeFile(t, "relay.yaml", "postgres: {url: '"+url("file")+"'}\nkafka: {brokers: ['file:1']}\n")
	flags := []Flag{{"--database-url", "postgres.url", url("flag")}, {"--brokers", "kafka.brokers", "flag:1"}}
	ours := []string{"CDC_RELAY_POSTGRES_URL=" + url("variable"), "CDC_RELAY_KAFKA_BROKERS=variable:1"}
	foreign := []string{"DATABASE_URL=" + url("database_url"), "KAFKA_BROKERS=kafka_brokers:1"}
	bootstrap := []string{"KAFKA_BOOTSTRAP_SERVERS=bootstrap:1"}

	for _, tt := range []struct {
		name           string
		src            Source
		server, broker string
	}{
		{"flag", Source{file, slices.Concat(environ, ours, foreign, bootstrap), flags}, "flag", "flag:1"},
		{"variable", Source{file, slices.Concat(environ, ours, foreign, bootstrap), nil}, "variable", "variable:1"},
		{"file", Source{file, slices.Concat(environ, foreign, bootstrap), nil}, "file", "file:1"},
		{"others' variables", Source{"", slices.Concat(environ, foreign, bootstrap), nil}, "database_url", "kafka_brokers:1"},
		{"weakest", Source{"", slices.Concat(environ, bootstrap), nil}, "pg.host", "bootstrap:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Load(tt.src, Everything)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Kafka.Brokers.String(); got != tt.broker {
				t.Errorf("brokers: got %s, want %s", got, tt.broker)
			}
			pg, err := pgconn.ParseConfig(string(c.Postgres.URL))
			if err != nil {
				t.Fatal(err)
			}
			got := []any{pg.Host, pg.Port, pg.Database, pg.User, pg.Password}
			want := []any{tt.server, uint16(5000), tt.server, tt.server, tt.server + "-password"}
			if tt.server == "pg.host" {
				want = []any{"pg.host", uint16(1111), "pgdatabase", "pguser", "pgpassword"}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPasswordFileWins(t *testing.T) {
	file := writeFile(t, "password", "from file \r\n")
	for _, url := range []string{"postgres://u:old@h/db", "host=h user=u password=old", "postgres://h/db"} {
		c, err := Load(Source{Environ: []string{"CDC_RELAY_POSTGRES_URL=" + url, "CDC_RELAY_POSTGRES_PASSWORD_FILE=" + file}}, Database)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range []string{c.Catalog().Password, c.WAL().Password} {
			if got != "from file " {
				t.Errorf("%s: got password %q", url, got)
			}
		}
	}
}

func TestScopes(t *testing.T) {
	none := []string{}
	for _, tt := range []struct {
		scope   Scope
		environ []string
		want    []string // keys with problems
	}{
		{Offline, none, nil},
		{Database, none, []string{"postgres.url"}},
		{Database, []string{"PGHOST=h"}, nil},
		{Everything, []string{"PGHOST=h"}, []string{"kafka.brokers"}},
		{Everything, none, []string{"postgres.url", "kafka.brokers"}},
	} {
		_, err := Load(Source{Environ: tt.environ}, tt.scope)
		var got []string
		if problems, ok := errors.AsType[*Error](err); ok {
			for _, p := range problems.Problems {
				got = append(got, p.Key)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("scope %d with %v: got problems with %v, want %v", tt.scope, tt.environ, got, tt.want)
		}
	}
}

// Each testdata/NAME.bad.yml has its problems, one a line, in NAME.bad.txt.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test data", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := Load(Source{File: file, Environ: []string{"DATABASE_URL=postgres://h/db", "KAFKA_BROKERS=b:1"}}, Everything)
			problems, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("got error %v, want problems", err)
			}
			var got strings.Builder
			for _, p := range problems.Problems {
				got.WriteString(p.String() + "; " + p.Next + "\n")
			}
			golden(t, strings.TrimSuffix(file, ".yml")+".txt", got.String())
		})
	}
}

func TestVariables(t *testing.T) {
	for _, tt := range []struct{ variable, want string }{
		{"CDC_RELAY_POSTGRES_SLOTT=x", "CDC_RELAY_POSTGRES_SLOTT: unknown variable, did you mean CDC_RELAY_POSTGRES_SLOT?"},
		{"CDC_RELAY_KAFKA_BROKER=x", "CDC_RELAY_KAFKA_BROKER: unknown variable, did you mean CDC_RELAY_KAFKA_BROKERS?"},
		{"CDC_RELAY_SHUTDOWN_TIMEOUT=soon", "CDC_RELAY_SHUTDOWN_TIMEOUT: shutdown_timeout: want a duration such as 10s or 1m30s"},
		{"CDC_RELAY_LIMITS_IN_FLIGHT_BYTES=-1", `CDC_RELAY_LIMITS_IN_FLIGHT_BYTES: limits.in_flight_bytes: "-1" is not a size: write bytes, or a whole number of KiB, MiB or GiB`},
		{"CDC_RELAY_POSTGRES_SLOT=", ""}, // empty is not set
		{"CDC_RELAY_SERVICE_HOST=10.0.0.1", ""},
		{"CDC_RELAY_PORT_9640_TCP=tcp://10.0.0.1:9640", ""},
		{"CDC_RELAY_KAFKA_PORT=tcp://10.0.0.1:9092", ""},
		{"CDC_RELAY_IMAGE=cdc-relay:1", ""},
	} {
		_, err := Load(Source{Environ: append(slices.Clone(least), tt.variable)}, Everything)
		got := ""
		if problems, ok := errors.AsType[*Error](err); ok {
			got = problems.Problems[0].String()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.variable, got, tt.want)
		}
	}
}

func TestMissingFile(t *testing.T) {
	_, err := Load(Source{File: "nowhere.yaml", Environ: least}, Everything)
	want := "configuration: nowhere.yaml: read configuration file: no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"postgres", "postgres.slot", "postgres.url", "kafka.brokers", "log.level"}
	for name, want := range map[string]string{
		"postgress": "postgres", "postgres.slott": "postgres.slot", "postgres.slot_name": "postgres.slot",
		"brokers": "kafka.brokers", "kafka.borkers": "kafka.brokers", "zzzzzzzzz": "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if _, off := nearest("kitten", slices.Collect(maps.Keys(map[string]int{"sitting": 0}))); off != 3 {
		t.Errorf("distance: got %d, want 3", off)
	}
}
