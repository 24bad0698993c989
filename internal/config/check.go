package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// checker collects the problems of values that can be read but make no sense.
type checker struct {
	config   *Config
	problems []Problem
}

// check reads the files of secrets and returns what is wrong with the values that the scope needs.
func (c *Config) check(scope Scope) []Problem {
	k := &checker{config: c}
	if scope >= Database {
		k.server()
	}
	k.postgres()
	k.outbox()
	if scope >= Everything {
		k.credentials()
		k.require("kafka.brokers", len(c.Kafka.Brokers) > 0, "not set",
			"name the bootstrap brokers in the file, as CDC_RELAY_KAFKA_BROKERS or as KAFKA_BROKERS")
	}
	k.kafka()
	k.require("resume.max_records", c.Resume.MaxRecords >= 1, "not positive", "give at least 1, or set resume.enabled to false")
	k.require("resume.max_bytes", c.Resume.MaxBytes >= 1<<20 && c.Resume.MaxBytes <= 1<<30, "out of range",
		"give 1MiB to 1GiB, or set resume.enabled to false")
	k.require("limits.in_flight_bytes", c.Limits.InFlightBytes >= 64<<10, "too small", "give at least 64KiB")
	k.deadLetters()
	k.require("shutdown_timeout", c.ShutdownTimeout > 0, "not positive", "give a duration such as 30s")
	k.address("http.listen", c.HTTP.Listen)
	k.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("log.format", c.Log.Format, "auto", "text", "json")
	return k.problems
}

// require notes a problem with a key unless ok.
func (k *checker) require(key string, ok bool, what, next string) {
	if !ok {
		k.problems = append(k.problems, Problem{Where: k.config.origins[key], Key: key, What: what, Next: next})
	}
}

func (k *checker) oneOf(key, value string, choices ...string) {
	k.require(key, slices.Contains(choices, value), fmt.Sprintf("%q is not a choice", value),
		"choose one of "+strings.Join(choices, ", "))
}

// readSecret returns the content of a file of a secret without its trailing newline.
func (k *checker) readSecret(key, path string) Secret {
	text, err := os.ReadFile(path)
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	k.require(key, err == nil, fmt.Sprintf("read %s: %v", path, err), "make the file readable for the relay, or correct the path")
	return Secret(strings.TrimRight(string(text), "\r\n"))
}

// server requires a server, reads the password and tries the connection string.
func (k *checker) server() {
	p := &k.config.Postgres
	k.require("postgres.url", k.config.NamesServer(), "not set", "set it in the file, as CDC_RELAY_POSTGRES_URL or with --database-url")
	if p.PasswordFile != "" {
		p.password = k.readSecret("postgres.password_file", p.PasswordFile)
	}
	if e, ok := errors.AsType[*catalog.CheckError](catalog.ValidateConnString(string(p.URL))); ok {
		k.require("postgres.url", false, strings.TrimPrefix(e.Problem, "postgres.url is "), e.Next)
	}
}

func (k *checker) postgres() {
	p := &k.config.Postgres
	k.require("postgres.slot", catalog.ValidateSlotName(p.Slot) == nil, fmt.Sprintf("%q cannot be a slot's name", p.Slot),
		"use lower-case letters, digits and underscores, at most 63")
	k.require("postgres.publication", p.Publication != "" && len(p.Publication) <= 63,
		fmt.Sprintf("%q cannot be a publication's name", p.Publication), "use 1 to 63 bytes")
	k.require("postgres.wal_sender_timeout", p.WALSenderTimeout >= wal.MinWALSenderTimeout, "too short",
		"give at least "+wal.MinWALSenderTimeout.String())
	k.oneOf("postgres.failover_slot", p.FailoverSlot, "auto", "off")
}

func (k *checker) outbox() {
	o := &k.config.Outbox
	for i, table := range o.Table {
		k.require("outbox.table", !slices.Contains(o.Table[:i], table), fmt.Sprintf("%s is named twice", table), "name it once")
		k.require("outbox.ignored_tables", !slices.Contains(o.IgnoredTables, table),
			fmt.Sprintf("%s is an outbox table, too", table), "remove it from one of the two")
	}
	for _, field := range slices.Sorted(maps.Keys(o.Columns)) {
		k.require("outbox.columns", field != "" && o.Columns[field] != "",
			fmt.Sprintf("field %q has column %q", field, o.Columns[field]), "name both")
	}
	k.oneOf("outbox.record_time", o.RecordTime, "commit", "created_at")
	for _, p := range k.config.Record().Check() {
		k.require(p.Key, false, p.Problem, p.Next)
	}
}

func (k *checker) kafka() {
	c := &k.config.Kafka
	for _, address := range c.Brokers {
		k.address("kafka.brokers", address)
	}
	k.oneOf("kafka.compression", c.Compression, "none", "gzip", "snappy", "lz4", "zstd")
	k.require("kafka.max_message_bytes", c.MaxMessageBytes >= 1<<10 && c.MaxMessageBytes <= 64<<20,
		"out of range", "give 1KiB to 64MiB")
	k.require("kafka.max_request_bytes", c.MaxRequestBytes >= min(c.MaxMessageBytes, 64<<20) && c.MaxRequestBytes <= 100<<20,
		"out of range", "give kafka.max_message_bytes to 100MiB, above which brokers close the connection")
	k.require("kafka.transactional_id", len(c.TransactionalID) <= 249 && !strings.ContainsFunc(c.TransactionalID, unicode.IsControl),
		"not a name", "give at most 249 bytes without control characters")
	k.createTopics()
	k.require("kafka.tls.cert_file", (c.TLS.CertFile == "") == (c.TLS.KeyFile == ""), "needed together with kafka.tls.key_file", "set both or none")
	k.sasl()
}

func (k *checker) createTopics() {
	t := k.config.Kafka.CreateTopics
	k.require("kafka.create_topics.partitions", t.Partitions >= 0, "negative", "give the number of partitions, or 0")
	k.require("kafka.create_topics.replication_factor", t.ReplicationFactor >= 0 && t.ReplicationFactor < 1<<15, "out of range",
		"give the number of replicas, or 0 for the broker's default")
	k.require("kafka.create_topics.partitions", t.Partitions > 0 || t.ReplicationFactor == 0 && len(t.Config) == 0,
		"not set, so that no topic is created", "give the number of partitions, or write kafka.create_topics: false")
}

func (k *checker) sasl() {
	s := &k.config.Kafka.SASL
	if s.Mechanism == "" {
		k.require("kafka.sasl.mechanism", s.Username == "" && s.Password == "" && s.PasswordFile == "",
			"not set, though there are credentials", "choose one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512")
		return
	}
	k.oneOf("kafka.sasl.mechanism", s.Mechanism, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
	k.require("kafka.sasl.username", s.Username != "", "not set", "name the user")
	k.require("kafka.sasl.password", s.Password != "" || s.PasswordFile != "", "not set", "set it, or kafka.sasl.password_file")
}

// deadLetters looks at what happens to rows that fail.
func (k *checker) deadLetters() {
	c := k.config
	k.oneOf("on_poison", c.OnPoison, deadLetter, halt)
	k.oneOf("on_unknown_topic", c.OnUnknownTopic, "wait", deadLetter)
	k.require("unknown_topic_grace", c.UnknownTopicGrace > 0, "not positive", "give a duration such as 5m")
	k.require("max_attempts", c.MaxAttempts >= 0, "negative", "give a number of attempts, or 0 to try for ever")
	// Without the store there is nowhere to put these rows.
	kept := c.OnPoison != halt
	k.require("on_unknown_topic", kept || c.OnUnknownTopic != deadLetter, "dead_letter needs on_poison: dead_letter",
		"set on_poison to dead_letter, or on_unknown_topic to wait")
	k.require("max_attempts", kept || c.MaxAttempts <= 0, "a limit needs on_poison: dead_letter",
		"set on_poison to dead_letter, or max_attempts to 0")
	k.require("retry.initial", c.Retry.Initial >= time.Millisecond, "too short", "give at least 1ms")
	k.require("retry.max", c.Retry.Max >= c.Retry.Initial && c.Retry.Max <= 5*time.Minute, "out of range", "give retry.initial to 5m")
	k.require("breaker.window", c.Breaker.Window >= minBreakerWindow && c.Breaker.Window <= 1e6, "out of range", "give 20 to 1000000 rows")
	k.require("breaker.share", c.Breaker.Share > 0 && c.Breaker.Share <= 1, "out of range",
		"give more than 0 and at most 1, which switches it off; to keep no dead letters set on_poison to halt")
	k.require("dead_letter.max_value_bytes", c.DeadLetter.MaxValueBytes <= 256<<20, "too large", "give at most 256MiB")
	k.require("dead_letter.retention", c.DeadLetter.Retention >= 0, "negative", "give a duration such as 720h, or 0s to keep them for ever")
}

// Values of on_poison and on_unknown_topic.
const (
	deadLetter = "dead_letter"
	halt       = "halt"
)

// minBreakerWindow is how many rows the breaker must have seen at least.
const minBreakerWindow = 20

// credentials reads the password for the brokers.
func (k *checker) credentials() {
	if s := &k.config.Kafka.SASL; s.PasswordFile != "" {
		s.Password = k.readSecret("kafka.sasl.password_file", s.PasswordFile)
	}
}

// address requires host:port.
func (k *checker) address(key, address string) {
	_, port, err := net.SplitHostPort(address)
	k.require(key, err == nil && port != "", fmt.Sprintf("%q is not an address", address), "write host:port")
}
