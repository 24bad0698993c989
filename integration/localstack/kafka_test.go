package localstack_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func startKafka(t *testing.T, cfg localstack.KafkaConfig) *localstack.Kafka {
	t.Helper()
	testenv.NeedJava(t)
	began := time.Now()
	kafka, err := localstack.StartKafka(t.Context(), cfg)
	must(t, err)
	t.Logf("%d brokers are ready after %v", len(kafka.Brokers()), time.Since(began))
	t.Cleanup(func() { must(t, kafka.Close()) })
	return kafka
}

// produce sends a record.
func produce(t *testing.T, limit time.Duration, topic string, brokers []string, opts ...kgo.Opt) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(brokers...))...)
	must(t, err)
	defer client.Close()
	return client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr()
}

func mustProduce(t *testing.T, topic string, brokers []string, opts ...kgo.Opt) {
	t.Helper()
	must(t, produce(t, 20*time.Second, topic, brokers, opts...))
}

func createTopic(t *testing.T, kafka *localstack.Kafka, name string, replicas int16) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addrs()...))
	must(t, err)
	defer client.Close()
	request := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, replicas
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(t.Context(), client)
	must(t, err)
	must(t, kerr.ErrorForCode(response.Topics[0].ErrorCode))
}

func TestKafkaStopsAndStarts(t *testing.T) {
	kafka := startKafka(t, localstack.KafkaConfig{Properties: map[string]string{"auto.create.topics.enable": "true"}})
	broker := kafka.Brokers()[0]
	mustProduce(t, "orders", kafka.Addrs(), kgo.AllowAutoTopicCreation())
	for name, stop := range map[string]func() error{
		"Stop": func() error { return broker.Stop(t.Context()) },
		"Kill of a paused broker": func() error {
			must(t, broker.Pause())
			return broker.Kill()
		},
	} {
		must(t, stop())
		if broker.PID() != 0 {
			t.Errorf("%s: the process runs on", name)
		}
		began := time.Now()
		must(t, broker.Start(t.Context()))
		t.Logf("ready %v after %s", time.Since(began), name)
		mustProduce(t, "orders", kafka.Addrs())
	}
	if got := len(testenv.Consume(t, kafka.Addrs(), "orders", 3, 10*time.Second)); got != 3 {
		t.Errorf("got %d records, want 3", got)
	}
	must(t, broker.Pause())
	sent := make(chan error, 1)
	go func() { sent <- produce(t, 20*time.Second, "orders", kafka.Addrs()) }()
	select {
	case err := <-sent:
		t.Errorf("a paused broker answers: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must(t, broker.Resume())
	must(t, <-sent)
}

func TestKafkaListeners(t *testing.T) {
	ca := testenv.NewAuthority(t)
	cert, key := ca.Issue("broker")
	var target string
	p, err := proxy.New(func() string { return target })
	must(t, err)
	defer p.Close()
	kafka := startKafka(t, localstack.KafkaConfig{
		TLS:       &localstack.TLSFiles{CertFile: cert, KeyFile: key, CAFile: ca.CAFile},
		Users:     map[string]string{"alice": "secret"},
		Advertise: []string{p.Addr()},
	})
	target = kafka.AddrsOf(localstack.Proxied)[0]
	createTopic(t, kafka, "orders", 1)
	cert, key = ca.Issue("client")
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	text, err := os.ReadFile(ca.CAFile)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	anonymous := kgo.DialTLSConfig(&tls.Config{RootCAs: roots})
	known := kgo.DialTLSConfig(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}})

	mustProduce(t, "orders", kafka.Addrs())
	mustProduce(t, "orders", kafka.AddrsOf(localstack.TLS), known)
	mustProduce(t, "orders", kafka.AddrsOf(localstack.SASLPlaintext), kgo.SASL(plain.Auth{User: "alice", Pass: "secret"}.AsMechanism()))
	scramAuth := scram.Auth{User: "alice", Pass: "secret"}
	mustProduce(t, "orders", kafka.AddrsOf(localstack.SASLPlaintext), kgo.SASL(scramAuth.AsSha256Mechanism()))
	mustProduce(t, "orders", kafka.AddrsOf(localstack.SASLTLS), anonymous, kgo.SASL(scramAuth.AsSha512Mechanism()))
	mustProduce(t, "orders", []string{p.Addr()})

	for name, err := range map[string]error{
		"no certificate": produce(t, time.Second, "orders", kafka.AddrsOf(localstack.TLS), anonymous),
		"wrong password": produce(t, time.Second, "orders", kafka.AddrsOf(localstack.SASLPlaintext),
			kgo.SASL(plain.Auth{User: "alice", Pass: "wrong"}.AsMechanism())),
	} {
		if err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	p.Cut()
	if err := produce(t, time.Second, "orders", []string{p.Addr()}); err == nil {
		t.Error("a client of the proxied listener goes round the proxy")
	}
}

func TestKafkaClusterLosesABroker(t *testing.T) {
	kafka := startKafka(t, localstack.KafkaConfig{Brokers: 3, SeparateController: true})
	createTopic(t, kafka, "orders", 3)
	mustProduce(t, "orders", kafka.Addrs())
	broker := kafka.Brokers()[1]
	must(t, broker.Kill())
	mustProduce(t, "orders", kafka.Addrs())
	began := time.Now()
	must(t, broker.Start(t.Context()))
	t.Logf("broker ready after %v", time.Since(began))
	mustProduce(t, "orders", []string{broker.Addr()})
}
