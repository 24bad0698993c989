package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// read returns everything that the commands take out of a configuration.
func read(c *Config) []any {
	return []any{
		c.Catalog(), c.Setup(), c.Spec(), c.WAL(), c.Record(), c.Broker(), c.Publish(), c.HTTP, c.Log, c.ShutdownTimeout,
		c.KeepsDeadLetters(), c.Breaker, c.DeadLetter,
	}
}

// Every key ends up in the Config of a package: setting it alone changes something there. A key that
// nobody reads has no place in the configuration.
func TestEveryKeyIsRead(t *testing.T) {
	// These only count together with another key.
	context := map[string]string{
		"kafka.create_topics.replication_factor": "kafka.create_topics.partitions",
		"kafka.create_topics.config":             "kafka.create_topics.partitions",
	}
	values := someValues(t)
	load := func(keys ...string) []any {
		c := Default()
		c.origins = map[string]string{}
		for _, f := range fields(&c) {
			for _, key := range keys {
				if f.key == key {
					if err := f.setText(values[key]); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		c.check(Everything) // for the secrets; most keys are missing
		return read(&c)
	}
	c := Default()
	for _, f := range fields(&c) {
		without, with := []string{}, []string{f.key}
		if other := context[f.key]; other != "" {
			without, with = append(without, other), append(with, other)
		}
		if cmp.Equal(load(without...), load(with...), cmpopts.IgnoreUnexported(wal.Config{})) {
			t.Errorf("%s: no package reads it", f.key)
		}
	}
}

// Whatever decides where records go is part of the fingerprint; how a name is written is not.
func TestRoutingFacts(t *testing.T) {
	t.Parallel()
	fingerprint := func(change func(*Config)) uint64 {
		c := Default()
		change(&c)
		return c.RoutingFacts().Fingerprint()
	}
	usual := fingerprint(func(*Config) {})
	for name, change := range map[string]func(*Config){
		"slot":        func(c *Config) { c.Postgres.Slot = "other" },
		"publication": func(c *Config) { c.Postgres.Publication = "other" },
		"tables":      func(c *Config) { c.Outbox.Table = append(c.Outbox.Table, tables("public", "b")...) },
		"columns":     func(c *Config) { c.Outbox.Columns = map[string]string{"aggregateid": "customer"} },
		"topic":       func(c *Config) { c.Routing.Topic = "events" },
		"key":         func(c *Config) { c.Routing.Key = "{id}" },
	} {
		if fingerprint(change) == usual {
			t.Errorf("%s: the fingerprint does not change", name)
		}
	}
	for name, change := range map[string]func(*Config){
		"a column listed under its own name": func(c *Config) { c.Outbox.Columns = map[string]string{"id": "id"} },
		"compression":                        func(c *Config) { c.Kafka.Compression = "zstd" },
		"resume":                             func(c *Config) { c.Resume.Enabled = false },
		"fence":                              func(c *Config) { c.Kafka.TransactionalID = "t" },
	} {
		if fingerprint(change) != usual {
			t.Errorf("%s: the fingerprint changes", name)
		}
	}
}
