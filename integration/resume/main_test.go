// Package resume_test kills the relay in the middle of a transaction, changes something, starts it again and looks at
// what it sends: nothing may be lost or out of order, and what is there already comes again only where the change is the
// reason.
package resume_test

import (
	"os"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	patience = scene.Patience
	user     = "relay"
	password = "s3cret-password"
)

// shared is the one broker of all tests: it has permissions, and deletes and compacts at once. It is a package variable
// because testing offers no other way from TestMain to a test.
var shared testenv.Cluster

func TestMain(m *testing.M) {
	testenv.Parallel(4) // These tests wait more than they compute.
	os.Exit(testenv.Main(m, shared.Close))
}

// kafka starts the broker at the first call.
func kafka(t *testing.T) *localstack.Kafka {
	t.Helper()
	shared.Start(t, localstack.KafkaConfig{
		Users: map[string]string{user: password},
		Properties: map[string]string{
			"authorizer.class.name":           "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":                     "User:ANONYMOUS", // whoever comes without SASL: the broker, this package
			"log.cleaner.backoff.ms":          "100",
			"log.retention.check.interval.ms": "200",
			"log.initial.task.delay.ms":       "100",
		},
	})
	return shared.Kafka
}
