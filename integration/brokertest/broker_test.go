package brokertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/broker"
)

func TestListeners(t *testing.T) {
	k := kafka(t)
	ca := broker.TLSConfig{CAFile: k.certs.ca}
	mutual := broker.TLSConfig{CAFile: k.certs.ca, CertFile: k.certs.client, KeyFile: k.certs.clientKey}
	sasl := func(mechanism string) broker.SASLConfig {
		return broker.SASLConfig{Mechanism: mechanism, Username: user, Password: password}
	}
	tests := map[string]struct {
		listener localstack.Listener
		tls      broker.TLSConfig
		sasl     broker.SASLConfig
	}{
		"plaintext":           {listener: localstack.Plaintext},
		"tls":                 {listener: localstack.TLS, tls: mutual},
		"sasl plain":          {listener: localstack.SASLPlaintext, sasl: sasl("PLAIN")},
		"scram 256":           {listener: localstack.SASLPlaintext, sasl: sasl("SCRAM-SHA-256")},
		"scram 512":           {listener: localstack.SASLPlaintext, sasl: sasl("scram-sha-512")},
		"sasl plain over tls": {listener: localstack.SASLTLS, tls: ca, sasl: sasl("PLAIN")},
		"scram 512 over tls":  {listener: localstack.SASLTLS, tls: ca, sasl: sasl("SCRAM-SHA-512")},
		"tls to another name": {listener: localstack.SASLTLS, tls: broker.TLSConfig{CAFile: k.certs.ca, ServerName: "localhost"}, sasl: sasl("PLAIN")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBroker(t, broker.Config{Brokers: k.kafka.AddrsOf(tt.listener), TLS: tt.tls, SASL: tt.sasl})
			if err := b.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			p, err := b.InitProducer(t.Context())
			if err != nil || p.ID < 0 {
				t.Fatalf("InitProducer = %v, %v", p, err)
			}
			if _, err := b.Partitions(t.Context(), "no-such-topic"); !errors.Is(err, broker.ErrUnknownTopic) {
				t.Fatalf("Partitions = %v, want ErrUnknownTopic", err)
			}
		})
	}
}

// TestWrongSecurity is about the text: it has to name the likely cause, within ten seconds.
func TestWrongSecurity(t *testing.T) {
	k := kafka(t)
	ca := broker.TLSConfig{CAFile: k.certs.ca}
	sasl := broker.SASLConfig{Mechanism: "SCRAM-SHA-256", Username: user, Password: password}
	tests := map[string]struct {
		listener localstack.Listener
		tls      broker.TLSConfig
		sasl     broker.SASLConfig
		want     string
	}{
		"plain client, tls listener":      {localstack.TLS, broker.TLSConfig{}, broker.SASLConfig{}, "listener speaks TLS"},
		"plain client, sasl tls listener": {localstack.SASLTLS, broker.TLSConfig{}, sasl, "listener speaks TLS"},
		"tls client, plain listener":      {localstack.Plaintext, ca, broker.SASLConfig{}, "may not speak TLS"},
		"tls client, sasl listener":       {localstack.SASLPlaintext, ca, sasl, "may not speak TLS"},
		"wrong authority":                 {localstack.SASLTLS, broker.TLSConfig{CAFile: k.certs.otherCA}, sasl, "kafka.tls.ca_file"},
		"system authorities":              {localstack.SASLTLS, broker.TLSConfig{Enabled: true}, sasl, "kafka.tls.ca_file"},
		"wrong host name":                 {localstack.SASLTLS, broker.TLSConfig{CAFile: k.certs.ca, ServerName: "kafka.example"}, sasl, "kafka.tls.server_name"},
		"no client certificate":           {localstack.TLS, ca, broker.SASLConfig{}, "client certificate"},
		"wrong password, plain":           {localstack.SASLPlaintext, broker.TLSConfig{}, broker.SASLConfig{Mechanism: "PLAIN", Username: user, Password: "wr0ng"}, "check kafka.sasl"},
		"wrong password, scram":           {localstack.SASLPlaintext, broker.TLSConfig{}, broker.SASLConfig{Mechanism: "SCRAM-SHA-512", Username: user, Password: "wr0ng"}, "check kafka.sasl"},
		"unknown user":                    {localstack.SASLPlaintext, broker.TLSConfig{}, broker.SASLConfig{Mechanism: "SCRAM-SHA-512", Username: "mallory", Password: "wr0ng"}, "check kafka.sasl"},
		"sasl client, plain listener":     {localstack.Plaintext, broker.TLSConfig{}, sasl, "does not use SASL"},
		"client without sasl":             {localstack.SASLPlaintext, broker.TLSConfig{}, broker.SASLConfig{}, "TLS or SASL"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBroker(t, broker.Config{Brokers: k.kafka.AddrsOf(tt.listener), TLS: tt.tls, SASL: tt.sasl})
			for what, ask := range map[string]func(context.Context) error{
				"Ping":         b.Ping,
				"InitProducer": func(ctx context.Context) error { _, err := b.InitProducer(ctx); return err },
				"Partitions":   func(ctx context.Context) error { _, err := b.Partitions(ctx, "t"); return err },
			} {
				start := time.Now()
				err := ask(t.Context())
				if err == nil {
					t.Fatalf("%s succeeded", what)
				}
				if d := time.Since(start); d > 9*time.Second {
					t.Errorf("%s took %s", what, d)
				}
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %q does not say %q", what, err, tt.want)
				}
				if strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), password) {
					t.Errorf("%s: the password is in %q", what, err)
				}
				t.Logf("%s in %s: %v", what, time.Since(start).Round(time.Millisecond), err)
			}
		})
	}
}

func TestWrongMechanism(t *testing.T) {
	testenv.NeedJava(t)
	k, err := localstack.StartKafka(t.Context(), localstack.KafkaConfig{
		Users:      map[string]string{user: password},
		Properties: map[string]string{"sasl.enabled.mechanisms": "PLAIN"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	b := openBroker(t, broker.Config{
		Brokers: k.AddrsOf(localstack.SASLPlaintext),
		SASL:    broker.SASLConfig{Mechanism: "SCRAM-SHA-256", Username: user, Password: password},
	})
	if err := b.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "kafka.sasl.mechanism") {
		t.Errorf("Ping = %v, want a word about the mechanism", err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	b := openBroker(t, broker.Config{Brokers: []string{"127.0.0.1:1", "127.0.0.1:2"}})
	err := b.Ping(t.Context())
	if err == nil || !strings.Contains(err.Error(), "kafka.brokers") {
		t.Errorf("Ping = %v, want a word about the addresses", err)
	}
	if broker.MayHaveBeenWritten(err) {
		t.Error("nothing can have been written without a connection")
	}
}
