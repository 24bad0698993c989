// Package config holds the settings of cdc-relay: one struct, read from defaults, a YAML file,
// CDC_RELAY_… variables and flags, in this order, and turned into the Config of each package that
// does the work. It opens no connection and reads no file but the YAML file and the secrets that
// it names. Only the commands import it.
//
// The comments below are the reference that users read: docs/configuration.md is made from them
// (go test ./internal/config -run TestReference -update).
package config

import (
	"log/slog"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// Config is every setting of the relay. Its zero value is not usable; start from Default or Load.
type Config struct {
	Postgres Postgres `yaml:"postgres"`
	Outbox   Outbox   `yaml:"outbox"`
	Kafka    Kafka    `yaml:"kafka"`
	Routing  Routing  `yaml:"routing"`
	Resume   Resume   `yaml:"resume"`
	Limits   Limits   `yaml:"limits"`

	Retry      Retry      `yaml:"retry"`
	Breaker    Breaker    `yaml:"breaker"`
	DeadLetter DeadLetter `yaml:"dead_letter"`

	HTTP HTTP `yaml:"http"`
	Log  Log  `yaml:"log"`

	// What happens to a row that can never be published, because it is too large, it makes no record (a
	// NULL in its topic, a value that cannot be read), its topic has a name that Kafka does not allow, or
	// the brokers refuse the record for what it is. `dead_letter`: it is kept in
	// `public.cdc_relay_dead_letter` of the same database, and the rows behind it go on; the relay does
	// not start without that table and the rights to it. `halt`: its partition waits until somebody
	// acts.
	OnPoison string `yaml:"on_poison"`

	// What happens to the rows of a topic that does not exist. `wait`: they wait for the topic.
	// `dead_letter`: they become dead letters once it has been missing for `unknown_topic_grace`. A
	// missing permission always waits.
	OnUnknownTopic string `yaml:"on_unknown_topic"`

	// How long a topic must have been missing, without a break, before its rows become dead letters.
	UnknownTopicGrace time.Duration `yaml:"unknown_topic_grace"`

	// How often a row is tried while brokers fail for reasons that pass (no answer, no leader, too
	// few replicas) before it becomes a dead letter, which is marked if it may have arrived all the same.
	// 0: for ever, so that an outage costs nothing but time. A topic that does not exist and a missing
	// permission do not count.
	MaxAttempts int `yaml:"max_attempts"`

	// How long a stop may take: the relay stops reading, waits until what it has sent is
	// acknowledged, confirms it and leaves. When the time is over it leaves all the same and says how
	// many rows will be sent again. Keep it below the grace period of the supervisor (30s in
	// Kubernetes).
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout"`

	// origins says where each key that is not at its default was set, for messages.
	origins map[string]string
}

// Postgres says which server to read from and what the relay owns there.
type Postgres struct {
	// Connection string, as a URL or as keyword=value pairs. It must lead to the server itself, not
	// to a pooler in transaction mode. When it is empty, `DATABASE_URL` is used, then libpq's `PG*`
	// variables; `PG*` also fills what the string leaves out, as in psql. Flag: `--database-url`.
	URL ConnString `yaml:"url"`

	// File that holds the password (a trailing newline is dropped). Wins over a password in the
	// connection string and over `PGPASSWORD`, so that the string can be kept in plain sight.
	PasswordFile string `yaml:"password_file"`

	// Replication slot. It is also the lock between relays: who streams from it is the leader, others
	// wait for it. Lower-case letters, digits and underscores, at most 63.
	Slot string `yaml:"slot"`

	// Publication that lists the outbox tables, insert-only.
	Publication string `yaml:"publication"`

	// `wal_sender_timeout` of the relay's own replication connection: how long a dead peer can go
	// unnoticed on either side. The relay sends its position at least every third of it.
	WALSenderTimeout time.Duration `yaml:"wal_sender_timeout"`

	// `auto` creates the slot as a failover slot on PostgreSQL 17 and newer, so that it survives a
	// switch to a standby; `off` never does.
	FailoverSlot string `yaml:"failover_slot"`

	password Secret // content of PasswordFile
}

// Outbox says which tables hold the events and what their columns mean.
type Outbox struct {
	// Table, or list of tables, that applications insert events into, written as in SQL: folded to
	// lower case unless quoted, in schema public unless qualified. A partitioned table is named by its
	// root.
	Table Tables `yaml:"table"`

	// Column of the table that holds each field, for tables with other names than the default ones:
	// `id`, `aggregatetype`, `aggregateid`, `type`, `payload`, `headers`, `created_at`, `contenttype`,
	// `aggregateversion`, `correlationid`, `causationid`, `schemaversion`, `traceparent`, `tracestate`,
	// `baggage`. Exact names, not folded. A
	// field that is not listed here is in the column of its own name; further names may be added for
	// the templates. The table needs the id, the payload and what the templates use; every other
	// column may be absent.
	Columns map[string]string `yaml:"columns"`

	// Further columns to send as headers: header name to exact column name.
	HeaderColumns map[string]string `yaml:"header_columns"`

	// Time of the records: `commit`, the moment of the commit, or `created_at`, what the column says,
	// for topics whose retention must count from the event. Rows older than 24 hours always get the
	// time of sending, since brokers may delete older records at once.
	RecordTime string `yaml:"record_time"`

	// Tables of the publication whose inserts are passed over, written as in SQL. An insert into any
	// other table that is not an outbox table stops the relay, since it may be an outbox table that
	// was renamed.
	IgnoredTables Tables `yaml:"ignored_tables"`
}

// Kafka says where records go.
type Kafka struct {
	// Bootstrap addresses, host:port; give several, since a single one that dies cannot be replaced.
	// When it is empty, `KAFKA_BROKERS` is used, then `KAFKA_BOOTSTRAP_SERVERS`. Records are always
	// produced idempotently and acknowledged by all in-sync replicas.
	Brokers Names `yaml:"brokers"`

	// Compression of batches: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
	Compression string `yaml:"compression"`

	// Largest batch. A single record that is larger goes alone, and the broker decides. Keep it at or
	// below the topic's `max.message.bytes`.
	MaxMessageBytes Bytes `yaml:"max_message_bytes"`

	// Largest record that is sent at all; a larger one is treated as `on_poison` says. Brokers close the
	// connection on requests of more than 100 MiB (`socket.request.max.bytes`) without saying which
	// record it was.
	MaxRequestBytes Bytes `yaml:"max_request_bytes"`

	// Name under which Kafka fences relays: as soon as a relay streams, whatever a former one that is
	// still alive sends to the partitions that the new one has written to is refused. Give all relays
	// of one slot the same name, and nobody else. The role needs the right to write to it
	// (TransactionalId). No transactions are used. Empty: no fence; events may then be repeated, never
	// reordered, while two relays believe to stream.
	TransactionalID string `yaml:"transactional_id"`

	// `false`: a row whose topic does not exist waits for it. A mapping: the relay creates the topic.
	CreateTopics CreateTopics `yaml:"create_topics"`

	TLS  TLS  `yaml:"tls"`
	SASL SASL `yaml:"sasl"`
}

// CreateTopics is how missing topics are created; without partitions none is.
type CreateTopics struct {
	// Partitions of a new topic; 0 creates none. A later change of the count moves keys to other
	// partitions, so choose with room to grow.
	Partitions int `yaml:"partitions"`

	// Replication factor of a new topic; 0 leaves it to the broker.
	ReplicationFactor int `yaml:"replication_factor"`

	// Topic settings of a new topic, such as `retention.ms`. `min.insync.replicas` is set to 2 when the
	// replication factor is 3 or more and it is not given here.
	Config map[string]string `yaml:"config"`
}

// TLS of the connections to the brokers.
type TLS struct {
	// Encrypt, and verify the brokers' certificates with the system's roots. Any other key of this
	// section turns it on too.
	Enabled bool `yaml:"enabled"`

	// PEM file of the authorities to trust instead of the system's.
	CAFile string `yaml:"ca_file"`

	// PEM file of the client's certificate, for mutual TLS.
	CertFile string `yaml:"cert_file"`

	// PEM file of the client's key.
	KeyFile string `yaml:"key_file"`

	// Name to expect in the brokers' certificates instead of the host that was dialled.
	ServerName string `yaml:"server_name"`
}

// SASL is how the relay says to the brokers who it is; without a mechanism it does not.
type SASL struct {
	// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`. PLAIN sends the password itself: use it with TLS.
	Mechanism string `yaml:"mechanism"`

	// User name.
	Username string `yaml:"username"`

	// Password; better kept in a file or in `CDC_RELAY_KAFKA_SASL_PASSWORD`.
	Password Secret `yaml:"password"`

	// File that holds the password (a trailing newline is dropped); wins over the password.
	PasswordFile string `yaml:"password_file"`
}

// Routing decides the topic and the key of each record, by templates in which `{name}` stands for
// a field of the row; `{{` and `}}` are braces. A change moves rows to other places: what is not
// confirmed is sent again.
type Routing struct {
	// Topic template.
	Topic string `yaml:"topic"`

	// Key template. A NULL column gives a record without a key, and so does an empty template; such
	// records are spread over the partitions by their id.
	Key string `yaml:"key"`
}

// Resume is how the relay finds out after a crash which events are on the topics already, although
// Postgres does not know it yet: it reads the ends of the partitions.
type Resume struct {
	// `false` sends everything again that was not confirmed to Postgres. Without the right to read a
	// topic the same happens, with a warning.
	Enabled bool `yaml:"enabled"`

	// How far back a partition is read for the last event of ours. Where others have written more
	// since, what is not confirmed is sent again.
	MaxRecords int `yaml:"max_records"`

	// Bytes that are read back at most, per partition.
	MaxBytes Bytes `yaml:"max_bytes"`
}

// Limits bound what the relay uses.
type Limits struct {
	// Bytes of rows read but not yet acknowledged, over all partitions. When they are used up the
	// relay stops reading, and Postgres holds the rest.
	InFlightBytes Bytes `yaml:"in_flight_bytes"`
}

// Retry is the pause before an attempt to send is repeated. It doubles from `initial` to `max`, with
// jitter, and starts anew after a success.
type Retry struct {
	// First pause.
	Initial time.Duration `yaml:"initial"`

	// Longest pause. Short, so that a partition goes on within seconds after an outage.
	Max time.Duration `yaml:"max"`
}

// Breaker stops the relay from making dead letters of everything: where too many of the recent rows
// would become one, the fault is probably not theirs. The relay halts then, says so, and tries again
// every 30s. A restart does not reset the count.
type Breaker struct {
	// How many of the last rows, published or dead letters, are looked at. Below 20 rows nothing is
	// decided.
	Window int `yaml:"window"`

	// Share of them that may be dead letters, more than 0 up to 1; 1 switches the breaker off.
	Share float64 `yaml:"share"`
}

// DeadLetter is how rows that could not be published are kept. `cdc-relay dlq` lists them and sends
// them again; [Dead letters](dead-letters.md) tells the whole.
type DeadLetter struct {
	// Largest value that is kept with the dead letter. A larger one is left out, and a replay reads it
	// from the outbox table, if the row is still there. 0 keeps no values.
	MaxValueBytes Bytes `yaml:"max_value_bytes"`

	// How long replayed and discarded dead letters are kept; 0s keeps them for ever. Those that are
	// still `dead` are never deleted.
	Retention time.Duration `yaml:"retention"`
}

// HTTP is the server of /livez, /readyz and /metrics.
type HTTP struct {
	// Address to listen on, host:port. It has no authentication: expose it to the inside only.
	Listen string `yaml:"listen"`
}

// Log is how the relay logs, on standard error.
type Log struct {
	// `debug`, `info`, `warn` or `error`. In a steady state nothing is logged at info. Flag:
	// `--log-level`.
	Level string `yaml:"level"`

	// `text`, `json`, or `auto`: text on a terminal, JSON elsewhere. Flag: `--log-format`.
	Format string `yaml:"format"`
}

// Default returns the settings that hold where nothing else is said.
func Default() Config {
	return Config{
		Postgres: Postgres{
			Slot:             "cdc_relay",
			Publication:      "cdc_relay",
			WALSenderTimeout: 10 * time.Second,
			FailoverSlot:     "auto",
		},
		Outbox:            Outbox{Table: Tables{{catalog.TableName{Schema: "public", Name: "outbox"}}}, RecordTime: "commit"},
		Kafka:             Kafka{Compression: "none", MaxMessageBytes: 1 << 20, MaxRequestBytes: 64 << 20},
		Routing:           Routing{Topic: "outbox.event.{aggregatetype}", Key: "{aggregateid}"},
		Resume:            Resume{Enabled: true, MaxRecords: publish.DefaultResumeMaxRecords, MaxBytes: publish.DefaultResumeMaxBytes},
		Limits:            Limits{InFlightBytes: 16 << 20},
		Retry:             Retry{Initial: publish.DefaultRetryInitial, Max: publish.DefaultRetryMax},
		Breaker:           Breaker{Window: 1000, Share: 0.2},
		DeadLetter:        DeadLetter{MaxValueBytes: 16 << 20},
		HTTP:              HTTP{Listen: "127.0.0.1:9640"},
		Log:               Log{Level: "info", Format: "auto"},
		OnPoison:          "dead_letter",
		OnUnknownTopic:    "wait",
		UnknownTopicGrace: 5 * time.Minute,
		ShutdownTimeout:   30 * time.Second,
	}
}

// KeepsDeadLetters reports whether rows that cannot be published become dead letters.
func (c *Config) KeepsDeadLetters() bool { return c.OnPoison == deadLetter }

// LogValue gives every key with its value, secrets redacted.
func (c *Config) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, f := range fields(c) {
		attrs = append(attrs, slog.String(f.key, f.text()))
	}
	return slog.GroupValue(attrs...)
}
