// Package publishtest runs the cdc-relay binary against real Kafka whose topics, sizes and permissions change under it.
package publishtest

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	patience = 60 * time.Second // a halted lane tries again every 30 seconds
	user     = "relay"
	password = "s3cret-password"
)

// shared is one broker for all tests. It creates topics at a request for their metadata, has permissions, closes idle
// connections soon, and can be reached through a proxy. It is a package variable because testing offers no other way from
// TestMain to a test.
var shared testenv.Cluster

// idleLimit is how long the broker keeps an idle connection.
const idleLimit = 3 * time.Second

func TestMain(m *testing.M) {
	testenv.Parallel(max(4, runtime.GOMAXPROCS(0))) // These tests wait more than they compute.
	os.Exit(testenv.Main(m, shared.Close))
}

// newScene gives a test an outbox table of its own and the single broker.
func newScene(t *testing.T) *scene.Scene {
	t.Helper()
	shared.Start(t, localstack.KafkaConfig{
		Users: map[string]string{user: password},
		Properties: map[string]string{
			"authorizer.class.name":     "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":               "User:ANONYMOUS", // whoever comes without SASL: the brokers, this package
			"auto.create.topics.enable": "true",
			"connections.max.idle.ms":   strconv.Itoa(int(idleLimit.Milliseconds())),
		},
	})
	return scene.New(t, shared.Kafka.Addrs())
}
