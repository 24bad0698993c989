// Package publishtest runs the cdc-relay binary against real Kafka whose topics, sizes and permissions change under it.
package publishtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	patience = 60 * time.Second // a halted lane tries again every 30 seconds
	user     = "relay"
	password = "s3cret-password"
)

// single is one broker for all tests. It creates topics at a request for their metadata, has
// permissions, closes idle connections soon, and can be reached through a proxy.
type single struct {
	once  sync.Once
	kafka *localstack.Kafka
	proxy *proxy.Proxy
	err   error
}

// shared is a package variable because testing offers no other way from TestMain to a test.
var shared single

// idleLimit is how long the broker keeps an idle connection.
const idleLimit = 3 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait more than they compute.
	_ = flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))) // A number never fails.
	code := testenv.Main(m)
	if shared.kafka != nil {
		if err := errors.Join(shared.kafka.Close(), shared.proxy.Close()); err != nil {
			fmt.Fprintln(os.Stderr, "close kafka:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func needJava(t *testing.T) {
	t.Helper()
	if err := localstack.HaveJava(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func (s *single) start() {
	if s.proxy, s.err = proxy.New(func() string { return s.kafka.AddrsOf(localstack.Proxied)[0] }); s.err != nil {
		return
	}
	s.kafka, s.err = localstack.StartKafka(context.Background(), localstack.KafkaConfig{
		Users:     map[string]string{user: password},
		Advertise: []string{s.proxy.Addr()},
		Properties: map[string]string{
			"authorizer.class.name":     "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":               "User:ANONYMOUS", // whoever comes without SASL: the brokers, this package
			"auto.create.topics.enable": "true",
			"connections.max.idle.ms":   strconv.Itoa(int(idleLimit.Milliseconds())),
		},
	})
}

// newScene gives a test an outbox table of its own and the single broker.
func newScene(t *testing.T) *scene.Scene {
	t.Helper()
	needJava(t)
	shared.once.Do(shared.start)
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return scene.New(t, shared.kafka.Addrs())
}
