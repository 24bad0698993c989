package securitytest

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// kafka is one broker with every kind of listener.
type kafka struct {
	*localstack.Kafka
	ca, otherCA, cert, key string
}

func startKafka(t *testing.T) *kafka {
	t.Helper()
	testenv.NeedJava(t)
	ca := testenv.NewAuthority(t)
	k := &kafka{ca: ca.CAFile, otherCA: testenv.NewAuthority(t).CAFile}
	k.cert, k.key = ca.Issue("client")
	cert, key := ca.Issue("server")
	var err error
	k.Kafka, err = localstack.StartKafka(t.Context(), localstack.KafkaConfig{
		Users: map[string]string{"relay": password},
		TLS:   &localstack.TLSFiles{CertFile: cert, KeyFile: key, CAFile: ca.CAFile},
		Properties: map[string]string{
			// Not all of them, for the sake of a mechanism that is not offered.
			"listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// env is an environment whose relay goes to the listener, and with it the settings: words such as ca, mutual, plain or
// scram256.
func (k *kafka) env(t *testing.T, listener localstack.Listener, host, words string) (*testenv.Env, testenv.Settings) {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = k.Addrs()
	address := strings.Replace(k.AddrsOf(listener)[0], "127.0.0.1", host, 1)
	s := testenv.Settings{"kafka.brokers": address}
	for word := range strings.FieldsSeq(words) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "system":
			s["kafka.tls.enabled"] = true
		case "ca":
			s["kafka.tls.ca_file"] = k.ca
		case "otherca":
			s["kafka.tls.ca_file"] = k.otherCA
		case "mutual":
			s["kafka.tls.cert_file"], s["kafka.tls.key_file"] = k.cert, k.key
		case "name":
			s["kafka.tls.server_name"] = value
		case "user":
			s["kafka.sasl.username"] = value
		case "wrong":
			s["kafka.sasl.password"] = wrongPassword
		case "file":
			s["kafka.sasl.password"], s["kafka.sasl.password_file"] = wrongPassword, secretFile(t, password)
		default: // a mechanism
			s["kafka.sasl.mechanism"], s["kafka.sasl.username"], s["kafka.sasl.password"] = name, "relay", password
		}
	}
	return env, s
}

func TestKafka(t *testing.T) {
	t.Parallel()
	k := startKafka(t)
	t.Run("works", k.works)
	t.Run("denies", k.denies)
	t.Run("waits", k.waits)
}

func (k *kafka) works(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		listener    localstack.Listener
		host, words string
	}{
		"mutual TLS":           {localstack.TLS, "127.0.0.1", "ca mutual"},
		"server name":          {localstack.TLS, "0.0.0.0", "ca mutual name=server"},
		"PLAIN":                {localstack.SASLPlaintext, "127.0.0.1", "PLAIN"},
		"SCRAM-SHA-256":        {localstack.SASLPlaintext, "127.0.0.1", "SCRAM-SHA-256"},
		"SCRAM-SHA-512":        {localstack.SASLPlaintext, "127.0.0.1", "SCRAM-SHA-512 file"},
		"PLAIN over TLS":       {localstack.SASLTLS, "127.0.0.1", "ca PLAIN file"},
		"SCRAM-SHA-512 on TLS": {localstack.SASLTLS, "localhost", "ca SCRAM-SHA-512"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, settings := k.env(t, tt.listener, tt.host, tt.words)
			relays(t, env, settings, nil, "--init")
		})
	}
}

// denies: what the brokers say of credentials is final.
func (k *kafka) denies(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		listener localstack.Listener
		words    string
	}{
		"PLAIN, wrong password":         {localstack.SASLPlaintext, "PLAIN wrong"},
		"SCRAM-SHA-256, wrong password": {localstack.SASLPlaintext, "SCRAM-SHA-256 wrong"},
		"SCRAM-SHA-512, wrong password": {localstack.SASLTLS, "ca SCRAM-SHA-512 wrong"},
		"unknown user":                  {localstack.SASLPlaintext, "SCRAM-SHA-512 user=mallory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, settings := k.env(t, tt.listener, "127.0.0.1", tt.words)
			exits(t, env, settings, 77, "SASL", "check kafka.sasl")
		})
	}
}

// waits: a listener that is not what the settings say may be one that is being changed. The text names the cause.
func (k *kafka) waits(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		listener          localstack.Listener
		host, words, says string
	}{
		"plain client, TLS listener":      {localstack.TLS, "127.0.0.1", "", "listener speaks TLS"},
		"SASL client, TLS listener":       {localstack.SASLTLS, "127.0.0.1", "PLAIN", "listener speaks TLS"},
		"TLS client, plain listener":      {localstack.Plaintext, "127.0.0.1", "ca", "may not speak TLS"},
		"TLS client, SASL listener":       {localstack.SASLPlaintext, "127.0.0.1", "ca PLAIN", "may not speak TLS"},
		"wrong authority":                 {localstack.SASLTLS, "127.0.0.1", "otherca PLAIN", "kafka.tls.ca_file"},
		"system's authorities":            {localstack.SASLTLS, "127.0.0.1", "system PLAIN", "kafka.tls.ca_file"},
		"wrong host":                      {localstack.SASLTLS, "0.0.0.0", "ca PLAIN", "kafka.tls.server_name"},
		"wrong server name":               {localstack.SASLTLS, "127.0.0.1", "ca PLAIN name=kafka.example", "kafka.tls.server_name"},
		"no client certificate":           {localstack.TLS, "127.0.0.1", "ca", "client certificate"},
		"mechanism that is not offered":   {localstack.SASLTLS, "127.0.0.1", "ca SCRAM-SHA-256", "kafka.sasl.mechanism"},
		"no credentials, SASL listener":   {localstack.SASLPlaintext, "127.0.0.1", "", "TLS or SASL"},
		"credentials, plaintext listener": {localstack.Plaintext, "127.0.0.1", "SCRAM-SHA-512", "does not use SASL"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, settings := k.env(t, tt.listener, tt.host, tt.words)
			waits(t, env, settings, tt.says)
		})
	}
}
