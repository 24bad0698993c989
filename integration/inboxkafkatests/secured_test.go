package inboxkafkatests

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// The dialer's TLS and SASL serve the membership of the group and the fetching.
func TestSecured(t *testing.T) {
	t.Parallel()
	testenv.NeedJava(t)
	const user, password = "alice", "s3cret-password"
	authority, err := localstack.NewAuthority(t.TempDir())
	must(t, err)
	server := localstack.TLSFiles{CAFile: authority.CAFile}
	server.CertFile, server.KeyFile, err = authority.Issue("server")
	must(t, err)
	cert, key, err := authority.Issue("client")
	must(t, err)
	kafka, err := localstack.StartKafka(t.Context(), localstack.KafkaConfig{TLS: &server, Users: map[string]string{user: password}})
	must(t, err)
	t.Cleanup(func() { _ = kafka.Close() })
	certificate, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	pem, err := os.ReadFile(authority.CAFile)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	secured := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	mutual := secured.Clone()
	mutual.Certificates = []tls.Certificate{certificate}
	mechanism, err := scram.Mechanism(scram.SHA512, user, password)
	must(t, err)
	for name, c := range map[string]struct {
		listener localstack.Listener
		tls      *tls.Config
		sasl     sasl.Mechanism
	}{
		"client certificate": {localstack.TLS, mutual, nil},
		"scram over tls":     {localstack.SASLTLS, secured, mechanism},
		"plain":              {localstack.SASLPlaintext, nil, plain.Mechanism{Username: user, Password: password}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := testenv.New(t, testenv.NoKafka())
			env.Brokers = kafka.Addrs()
			r := newRigOn(t, env, 2)
			r.send(r.events(4, 1, 5)...)
			r.member(func(_ *inbox.Config, cfg *inboxkafka.Config) {
				cfg.Brokers = kafka.AddrsOf(c.listener)
				cfg.Dialer = &kafkago.Dialer{Timeout: 10 * time.Second, TLS: c.tls, SASLMechanism: c.sasl}
			})
			r.until(20)
			r.inOrder(4, 5)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
