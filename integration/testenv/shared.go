package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// servers are started by the first test that needs them and closed by Main.
type servers struct {
	mu       sync.Mutex
	postgres map[int]*localstack.Postgres
	kafka    *localstack.Kafka
	fake     *localstack.Fake
	binaries binaries
}

// shared is the one package variable: testing offers no other way from TestMain to a test.
var shared = servers{postgres: map[int]*localstack.Postgres{}}

// Main runs the tests and then closes the shared servers. It returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "close test servers:", err)
		code = max(code, 1)
	}
	return code
}

func progress(line string) { fmt.Fprintln(os.Stderr, line) }

// Major is the version that tests run on unless they ask for another: the variable CDC_RELAY_TEST_POSTGRES, or the
// newest.
func Major() int {
	if major, err := strconv.Atoi(os.Getenv("CDC_RELAY_TEST_POSTGRES")); err == nil {
		return major
	}
	return localstack.PostgresMajors()[0]
}

// Postgres returns the shared server of a major version; 0 means [Major].
func Postgres(ctx context.Context, major int) (*localstack.Postgres, error) {
	if major == 0 {
		major = Major()
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if server := shared.postgres[major]; server != nil {
		return server, nil
	}
	server, err := localstack.StartPostgres(ctx, localstack.PostgresConfig{Major: major, NoSync: true, Progress: progress})
	if err != nil {
		return nil, err
	}
	shared.postgres[major] = server
	return server, nil
}

// Kafka returns the shared real cluster once a test has started it, else nil. Only a package that runs its tests one
// after another may stop or freeze it.
func Kafka() *localstack.Kafka {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	return shared.kafka
}

// brokers returns the addresses of the shared broker, and whether it is a real one.
func (s *servers) brokers(ctx context.Context) (addrs []string, realKafka bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.kafka != nil:
		return s.kafka.Addrs(), true, nil
	case s.fake != nil:
		return s.fake.Addrs(), false, nil
	}
	if err := localstack.HaveJava(); err == nil {
		if s.kafka, err = localstack.StartKafka(ctx, localstack.KafkaConfig{Progress: progress}); err != nil {
			return nil, false, err
		}
		return s.kafka.Addrs(), true, nil
	} else if os.Getenv("CI") == "true" {
		return nil, false, err
	} else {
		progress(err.Error() + "; using the in-process broker")
	}
	if s.fake, err = localstack.StartFake(1); err != nil {
		return nil, false, err
	}
	return s.fake.Addrs(), false, nil
}

func (s *servers) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, server := range s.postgres {
		errs = append(errs, server.Close())
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Close())
	}
	if s.fake != nil {
		errs = append(errs, s.fake.Close())
	}
	errs = append(errs, s.binaries.remove())
	return errors.Join(errs...)
}
