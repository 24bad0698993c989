package testenv

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// servers are started by the first test that needs them and closed by Main.
type servers struct {
	mu        sync.Mutex
	postgres  map[int]postgresServer
	kafka     kafkaServer
	realKafka bool
	binaries  binaries
}

// shared is the one package variable: testing offers no other way from TestMain to a test.
var shared = servers{postgres: map[int]postgresServer{}}

// Main runs the tests and then closes the shared servers, and what else their package shares. It returns the exit code.
func Main(m *testing.M, closers ...func() error) int {
	code := m.Run()
	err := shared.close()
	for _, closer := range closers {
		err = errors.Join(err, closer())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "close test servers:", err)
		code = max(code, 1)
	}
	return code
}

// Parallel has n tests run at once, whatever the number of processors. Call it before [Main].
func Parallel(n int) {
	flag.Parse()
	_ = flag.Set("test.parallel", strconv.Itoa(n)) // A number never fails.
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

// Postgres returns the shared server of a major version; 0 means [Major]. It needs local processes.
func Postgres(ctx context.Context, major int) (*localstack.Postgres, error) {
	server, err := shared.server(ctx, major)
	if err != nil {
		return nil, err
	}
	local, ok := server.(*localstack.Postgres)
	if !ok {
		return nil, errors.New("the shared PostgreSQL is a container; this test needs a local process")
	}
	return local, nil
}

// Kafka returns the shared real cluster once a test has started it, else nil, and nil if it is a container. Only a
// package that runs its tests one after another may stop or freeze it.
func Kafka() *localstack.Kafka {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	local, _ := shared.kafka.(*localstack.Kafka)
	return local
}

// server returns the shared server of a major version; 0 means [Major].
func (s *servers) server(ctx context.Context, major int) (postgresServer, error) {
	if major == 0 {
		major = Major()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if server := s.postgres[major]; server != nil {
		return server, nil
	}
	provider, err := postgresProvider()
	if err != nil {
		return nil, err
	}
	server, err := provider.startPostgres(ctx, major)
	if err != nil {
		return nil, err
	}
	s.postgres[major] = server
	return server, nil
}

// brokers returns the addresses of the shared broker, and whether it is a real one.
func (s *servers) brokers(ctx context.Context) (addrs []string, realKafka bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kafka != nil {
		return s.kafka.Addrs(), s.realKafka, nil
	}
	provider, err := kafkaProvider(ctx)
	if err != nil {
		return nil, false, err
	}
	if s.kafka, err = provider.startKafka(ctx); err != nil {
		s.kafka = nil
		return nil, false, err
	}
	_, fake := s.kafka.(*localstack.Fake)
	s.realKafka = !fake
	return s.kafka.Addrs(), s.realKafka, nil
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
	return errors.Join(append(errs, s.binaries.remove())...)
}
