// Package cluster_test runs the relay on three brokers that move, die, freeze, refuse, forget and come back under load.
// Its tests run one after another: they share the cluster, and each leaves it whole.
package cluster_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/kafkaadmin"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	patience = 60 * time.Second
	// soon is what "within seconds" is on a machine that runs three brokers and much else on two cores.
	soon = 15 * time.Second
)

// cluster is three brokers, each with a proxy before it for the tests that want one, and a controller of their own, so
// that any broker may go.
type cluster struct{ testenv.Cluster }

// shared is a package variable because testing offers no other way from TestMain to a test.
var shared cluster

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, shared.Close)) }

// brokers starts the cluster at the first call, and has all brokers run again when the test ends.
func brokers(t *testing.T) *cluster {
	t.Helper()
	shared.Start(t, localstack.KafkaConfig{
		Brokers: 3, SeparateController: true, Heap: "320m",
		Properties: map[string]string{
			"producer.id.expiration.check.interval.ms": "500", // For the test that has producers expire.
			"replica.lag.time.max.ms":                  "5000",
		},
	})
	t.Cleanup(func() {
		for _, b := range shared.Kafka.Brokers() {
			if err := b.Start(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	return &shared
}

// addrs are the brokers without their proxies.
func (c *cluster) addrs() []string { return c.Kafka.Addrs() }

// proxied are the addresses of the proxies.
func (c *cluster) proxied() []string {
	var addrs []string
	for _, p := range c.Proxies {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// safe are the settings of a topic that one broker may leave without loss.
var safe = []string{"min.insync.replicas", "2"}

func admin(t *testing.T) *kafkaadmin.Admin { return kafkaadmin.New(t, shared.addrs()) }
