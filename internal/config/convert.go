package config

import (
	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
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

// IgnoredTables returns the published tables whose inserts are passed over.
func (c *Config) IgnoredTables() []catalog.TableName { return c.Outbox.IgnoredTables.names() }

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
