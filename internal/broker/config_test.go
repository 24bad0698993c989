package broker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	ok := Config{Brokers: []string{"a:9092", "[::1]:9092"}}
	if err := ok.Validate(); err != nil {
		t.Errorf("Validate = %v", err)
	}
	const secret = "s3cret"
	tests := map[string]struct {
		change func(*Config)
		want   string
	}{
		"no brokers":        {func(c *Config) { c.Brokers = nil }, "kafka.brokers"},
		"no port":           {func(c *Config) { c.Brokers = []string{"kafka"} }, `"kafka" is not host:port`},
		"no host":           {func(c *Config) { c.Brokers = []string{":9092"} }, `":9092" is not host:port`},
		"half a client":     {func(c *Config) { c.TLS.CertFile = "c.pem" }, "key_file"},
		"negative time-out": {func(c *Config) { c.RequestTimeout = -1 }, "kafka.request_timeout"},
		"unknown mechanism": {func(c *Config) { c.SASL = SASLConfig{Mechanism: "GSSAPI", Username: "u", Password: secret} }, "kafka.sasl.mechanism"},
		"no mechanism":      {func(c *Config) { c.SASL = SASLConfig{Username: "u", Password: secret} }, "kafka.sasl.mechanism"},
		"no user":           {func(c *Config) { c.SASL = SASLConfig{Mechanism: "PLAIN", Password: secret} }, "kafka.sasl.username"},
		"forbidden characters": {func(c *Config) {
			c.SASL = SASLConfig{Mechanism: "SCRAM-SHA-256", Username: "u", Password: secret + "\x00"}
		}, "RFC 4013"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := ok
			tt.change(&c)
			err := c.Validate()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Validate = %v, want a word about %s", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the password is in %q", err)
			}
		})
	}
}

func TestLoadTLS(t *testing.T) {
	t.Parallel()
	if c, err := (TLSConfig{}).load(); c != nil || err != nil {
		t.Errorf("zero TLSConfig: %v, %v, want none", c, err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]TLSConfig{
		"ca_file":   {CAFile: "no-such-file.pem"},
		"empty.pem": {CAFile: empty},
		"cert_file": {CertFile: empty, KeyFile: empty},
	} {
		if _, err := c.load(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("load = %v, want a word about %s", err, name)
		}
	}
	c, err := TLSConfig{Enabled: true, ServerName: "kafka.example"}.load()
	if err != nil || c.InsecureSkipVerify || c.ServerName != "kafka.example" {
		t.Errorf("load = %+v, %v", c, err)
	}
}
