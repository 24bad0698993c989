// Package cluster_test runs the relay on three brokers that move, die, freeze, refuse, forget and come back under load.
// Its tests run one after another: they share the cluster, and each leaves it whole.
package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/kafkaadmin"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	patience = 60 * time.Second
	// soon is what "within seconds" is on a machine that runs three brokers and much else on two cores.
	soon = 15 * time.Second
)

// cluster is three brokers, each with a proxy before it for the tests that want one, and a controller of their own, so
// that any broker may go.
type cluster struct {
	once    sync.Once
	kafka   *localstack.Kafka
	proxies []*proxy.Proxy
	err     error
}

// shared is a package variable because testing offers no other way from TestMain to a test.
var shared cluster

func TestMain(m *testing.M) {
	code := testenv.Main(m)
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "close kafka:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// brokers starts the cluster at the first call, and waits until all brokers are there.
func brokers(t *testing.T) *cluster {
	t.Helper()
	shared.once.Do(func() { shared.err = shared.start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() {
		for _, b := range shared.kafka.Brokers() {
			if err := b.Start(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	return &shared
}

func (c *cluster) start() error {
	var advertise []string
	for i := range 3 {
		p, err := proxy.New(func() string { return c.kafka.AddrsOf(localstack.Proxied)[i] })
		if err != nil {
			return err
		}
		c.proxies, advertise = append(c.proxies, p), append(advertise, p.Addr())
	}
	var err error
	c.kafka, err = localstack.StartKafka(context.Background(), localstack.KafkaConfig{
		Brokers: 3, SeparateController: true, Advertise: advertise, Heap: "320m",
		Properties: map[string]string{
			"producer.id.expiration.check.interval.ms": "500", // For the test that has producers expire.
			"replica.lag.time.max.ms":                  "5000",
		},
	})
	return err
}

func (c *cluster) close() error {
	var errs []error
	if c.kafka != nil {
		errs = append(errs, c.kafka.Close())
	}
	for _, p := range c.proxies {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// addrs are the brokers without their proxies.
func (c *cluster) addrs() []string { return c.kafka.Addrs() }

// proxied are the addresses of the proxies.
func (c *cluster) proxied() []string {
	var addrs []string
	for _, p := range c.proxies {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// heal ends the faults of all proxies.
func (c *cluster) heal() {
	for _, p := range c.proxies {
		p.Heal()
	}
}

// safe are the settings of a topic that one broker may leave without loss.
var safe = []string{"min.insync.replicas", "2"}

func admin(t *testing.T) *kafkaadmin.Admin { return kafkaadmin.New(t, shared.addrs()) }
