// Package brokertest tests packages broker and publish against real Kafka.
package brokertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

const (
	user     = "alice"
	password = "s3cret-password"
)

// cluster is one broker with every kind of listener, shared by the tests.
type cluster struct {
	once  sync.Once
	kafka *localstack.Kafka
	certs certificates
	dir   string
	err   error
}

// shared is a package variable because testing offers no other way from TestMain to a test.
var shared cluster

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, shared.close)) }

func (c *cluster) close() error {
	var err error
	if c.kafka != nil {
		err = c.kafka.Close()
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// certificates are PEM files: an authority, a client certificate of it, what the server has, and an authority that
// signed neither.
type certificates struct {
	ca, client, clientKey, otherCA string
	server                         localstack.TLSFiles
}

func makeCertificates(dir string) (c certificates, err error) {
	authority, err := localstack.NewAuthority(filepath.Join(dir, "authority"))
	if err != nil {
		return c, err
	}
	other, err := localstack.NewAuthority(filepath.Join(dir, "other"))
	if err != nil {
		return c, err
	}
	c.ca, c.server.CAFile, c.otherCA = authority.CAFile, authority.CAFile, other.CAFile
	if c.server.CertFile, c.server.KeyFile, err = authority.Issue("server"); err != nil {
		return c, err
	}
	c.client, c.clientKey, err = authority.Issue("client")
	return c, err
}

func kafka(t *testing.T) *cluster {
	t.Helper()
	testenv.NeedJava(t)
	shared.once.Do(func() {
		//nolint:usetesting // It outlives the test that asks first.
		if shared.dir, shared.err = os.MkdirTemp("", "brokertest"); shared.err != nil {
			return
		}
		if shared.certs, shared.err = makeCertificates(shared.dir); shared.err != nil {
			return
		}
		shared.kafka, shared.err = localstack.StartKafka(context.Background(), localstack.KafkaConfig{
			Users: map[string]string{user: password},
			Properties: map[string]string{
				// Everybody may do everything until a test makes a rule for one resource.
				"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
				"super.users":                    "User:ANONYMOUS",
				"allow.everyone.if.no.acl.found": "true",
				"log.cleaner.backoff.ms":         "200",
			},
			TLS: &shared.certs.server,
		})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &shared
}

func openBroker(t *testing.T, cfg broker.Config) *broker.Broker {
	t.Helper()
	b, err := broker.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// newClient is another client than the one under test.
func newClient(t *testing.T, addrs []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(addrs...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func createTopic(t *testing.T, addrs []string, name string, partitions int32, config ...string) {
	t.Helper()
	client := newClient(t, addrs)
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, -1
	for i := 0; i < len(config); i += 2 {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = config[i], &config[i+1]
		topic.Configs = append(topic.Configs, c)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 10_000
	res, err := req.RequestWith(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	if err := kerr.ErrorForCode(res.Topics[0].ErrorCode); err != nil {
		t.Fatal(err)
	}
}

// producer is a running publisher with one session.
type producer struct {
	*publish.Publisher
	t   *testing.T
	seq uint64
}

func startPublisher(t *testing.T, cfg publish.Config, b publish.Broker) *producer {
	t.Helper()
	p, err := publish.New(cfg, b, slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	p.Begin(publish.Session{Alive: func() bool { return true }})
	return &producer{Publisher: p, t: t}
}

// put publishes one row; its value is "n" and its key decides the partition.
func (p *producer) put(topic string, key, value []byte) {
	p.t.Helper()
	p.seq++
	r := publish.Record{
		Topic: topic, Key: key, Value: value,
		Headers:  []publish.Header{{Name: "id", Value: fmt.Appendf(nil, "id-%d", p.seq)}, {Name: "none"}},
		Time:     time.Now(),
		ID:       fmt.Appendf(nil, "id-%d", p.seq),
		Position: position.Position{Commit: 1 << 20, LSN: 1 << 19, Kind: position.Row, Index: uint32(p.seq)},
		Seq:      p.seq,
	}
	if err := p.Publish(p.t.Context(), &r); err != nil {
		p.t.Fatal(err)
	}
}

func (p *producer) drain(limit time.Duration) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	if err := p.Drained(ctx); err != nil {
		p.t.Fatalf("not drained within %s: %v: %v", limit, err, p.Snapshot().Problems())
	}
}

// fake is an in-process cluster of the test's own.
func fake(t *testing.T) *localstack.Fake {
	t.Helper()
	f, err := localstack.StartFake(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// soon bounds what takes a broker milliseconds.
const soon = 10 * time.Second
