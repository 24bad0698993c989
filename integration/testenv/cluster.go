package testenv

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
)

// NeedJava skips the test where real Kafka cannot run, and fails it in CI.
func NeedJava(t testing.TB) {
	t.Helper()
	if err := localstack.HaveJava(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// Cluster is real Kafka that the tests of one package share, with a proxy in front of each broker. Its zero value is
// to be kept in a package variable, and its Close to be given to [Main].
type Cluster struct {
	Kafka   *localstack.Kafka
	Proxies []*proxy.Proxy

	once sync.Once
	err  error
}

// Start starts the cluster at the first call, with the proxies behind its listener [localstack.Proxied]. It is
// [NeedJava], too.
func (c *Cluster) Start(t testing.TB, cfg localstack.KafkaConfig) {
	t.Helper()
	NeedJava(t)
	c.once.Do(func() { c.err = c.start(cfg) })
	if c.err != nil {
		t.Fatal(c.err)
	}
}

func (c *Cluster) start(cfg localstack.KafkaConfig) (err error) {
	started := make(chan struct{})
	for i := range max(1, cfg.Brokers) {
		p, err := proxy.New(func() string {
			<-started
			return c.Kafka.AddrsOf(localstack.Proxied)[i]
		})
		if err != nil {
			return err
		}
		c.Proxies, cfg.Advertise = append(c.Proxies, p), append(cfg.Advertise, p.Addr())
	}
	if c.Kafka, err = localstack.StartKafka(context.Background(), cfg); err != nil {
		return err
	}
	close(started)
	return nil
}

// Proxy is the proxy of the first broker.
func (c *Cluster) Proxy() *proxy.Proxy { return c.Proxies[0] }

// Heal ends the faults of all proxies.
func (c *Cluster) Heal() {
	for _, p := range c.Proxies {
		p.Heal()
	}
}

// Close ends what was started.
func (c *Cluster) Close() error {
	var errs []error
	if c.Kafka != nil {
		errs = append(errs, c.Kafka.Close())
	}
	for _, p := range c.Proxies {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
