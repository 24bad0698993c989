package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// read returns everything that the commands take out of a configuration.
func read(c *Config) []any {
	return []any{c.Catalog(), c.Setup(), c.IgnoredTables(), c.WAL(), c.Broker(), c.Outbox, c.Routing, c.Kafka, c.Limits, c.HTTP, c.Log, c.ShutdownTimeout}
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
		c.check(ForRelay) // for the secrets; most keys are missing
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
