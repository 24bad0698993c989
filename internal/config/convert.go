package config

import (
	"maps"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/record"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// Catalog returns how to reach the database over ordinary connections.
func (c *Config) Catalog() catalog.Config {
	return catalog.Config{ConnString: string(c.Postgres.URL), Password: string(c.Postgres.password)}
}

// Setup returns what must exist in the database beside the tables of the relay.
func (c *Config) Setup() catalog.Setup {
	return catalog.Setup{
		Slot:        c.Postgres.Slot,
		Publication: c.Postgres.Publication,
		Tables:      c.Outbox.Table.names(),
		Failover:    c.Postgres.FailoverSlot == "auto",
	}
}

// Spec returns what the database must have.
func (c *Config) Spec() catalog.Spec {
	spec := catalog.Spec{Slot: c.Postgres.Slot, Publication: c.Postgres.Publication, Ignored: c.Outbox.IgnoredTables.names()}
	required := c.Record().RequiredColumns()
	for _, name := range c.Outbox.Table.names() {
		spec.Tables = append(spec.Tables, catalog.TableSpec{Name: name, Required: required})
	}
	return spec
}

// Record returns what rows mean.
func (c *Config) Record() record.Config {
	return record.Config{
		Tables:        c.Outbox.Table.record(),
		Ignored:       c.Outbox.IgnoredTables.record(),
		Columns:       c.Outbox.Columns,
		HeaderColumns: c.Outbox.HeaderColumns,
		Topic:         c.Routing.Topic,
		Key:           c.Routing.Key,
		CreatedAt:     c.Outbox.RecordTime == "created_at",
	}
}

// RoutingFacts returns what decides which records exist and where they go, but for the name of the
// database, which only the server knows. A field in the column of its own name is the same whether
// it is listed or not.
func (c *Config) RoutingFacts() position.Routing {
	columns := maps.Clone(c.Outbox.Columns)
	maps.DeleteFunc(columns, func(field, column string) bool { return field == column })
	facts := position.Routing{
		Slot:         c.Postgres.Slot,
		Publications: []string{c.Postgres.Publication},
		Messages:     true,
		Columns:      columns,
		Topic:        c.Routing.Topic,
		Key:          c.Routing.Key,
		Partitioner:  "murmur2",
	}
	for _, name := range c.Outbox.Table.names() {
		facts.Tables = append(facts.Tables, name.Quoted())
	}
	return facts
}

// WAL returns how to stream from the slot.
func (c *Config) WAL() wal.Config {
	return wal.Config{
		URL:              string(c.Postgres.URL),
		Password:         string(c.Postgres.password),
		Slot:             c.Postgres.Slot,
		Publications:     []string{c.Postgres.Publication},
		WALSenderTimeout: c.Postgres.WALSenderTimeout,
	}
}

// Broker returns how to reach the brokers.
func (c *Config) Broker() broker.Config {
	k := c.Kafka
	return broker.Config{
		Brokers: k.Brokers,
		TLS: broker.TLSConfig{
			Enabled: k.TLS.Enabled, CAFile: k.TLS.CAFile, CertFile: k.TLS.CertFile, KeyFile: k.TLS.KeyFile, ServerName: k.TLS.ServerName,
		},
		SASL: broker.SASLConfig{Mechanism: k.SASL.Mechanism, Username: k.SASL.Username, Password: string(k.SASL.Password)},
	}
}

// Publish returns how to send records.
func (c *Config) Publish() publish.Config {
	return publish.Config{
		Compression:     c.Kafka.Compression,
		MaxMessageBytes: int(c.Kafka.MaxMessageBytes),
		MaxRequestBytes: int(c.Kafka.MaxRequestBytes),
		InFlightBytes:   int(c.Limits.InFlightBytes),
		CreateTopics:    c.createTopics(),

		Resume:           c.Resume.Enabled,
		ResumeMaxRecords: c.Resume.MaxRecords,
		ResumeMaxBytes:   int(c.Resume.MaxBytes),
		TransactionalID:  c.Kafka.TransactionalID,

		RetryInitial: c.Retry.Initial,
		RetryMax:     c.Retry.Max,

		DeadLetter:              c.KeepsDeadLetters(),
		DeadLetterUnknownTopics: c.OnUnknownTopic == deadLetter,
		UnknownTopicGrace:       c.UnknownTopicGrace,
		MaxAttempts:             c.MaxAttempts,
	}
}

// createTopics returns how missing topics are created, nil when they are not.
func (c *Config) createTopics() *broker.TopicSpec {
	t := c.Kafka.CreateTopics
	if t.Partitions == 0 {
		return nil
	}
	return &broker.TopicSpec{Partitions: t.Partitions, ReplicationFactor: t.ReplicationFactor, Config: t.Config}
}
