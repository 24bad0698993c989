// Package resume_test kills the relay in the middle of a transaction, changes something, starts it again and looks at
// what it sends: nothing may be lost or out of order, and what is there already comes again only where the change is the
// reason.
package resume_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
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

// broker is the one broker of all tests: it has permissions, and deletes and compacts at once.
type broker struct {
	once  sync.Once
	kafka *localstack.Kafka
	err   error
}

// shared is a package variable because testing offers no other way from TestMain to a test.
var shared broker

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait more than they compute.
	_ = flag.Set("test.parallel", strconv.Itoa(4)) // A number never fails.
	code := testenv.Main(m)
	if shared.kafka != nil {
		if err := shared.kafka.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close kafka:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// kafka starts the broker at the first call.
func kafka(t *testing.T) *localstack.Kafka {
	t.Helper()
	if err := localstack.HaveJava(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	shared.once.Do(func() {
		shared.kafka, shared.err = localstack.StartKafka(context.Background(), localstack.KafkaConfig{
			Users: map[string]string{user: password},
			Properties: map[string]string{
				"authorizer.class.name":           "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
				"super.users":                     "User:ANONYMOUS", // whoever comes without SASL: the broker, this package
				"log.cleaner.backoff.ms":          "100",
				"log.retention.check.interval.ms": "200",
				"log.initial.task.delay.ms":       "100",
			},
		})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.kafka
}
