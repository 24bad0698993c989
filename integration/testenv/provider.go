package testenv

import (
	"context"
	"fmt"
	"os"

	"github.com/testcontainers/testcontainers-go"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// postgresServer is what New needs of a PostgreSQL server, whoever runs it.
type postgresServer interface {
	URL(database string) string
	Close() error
}

// kafkaServer is what New needs of a Kafka cluster, whoever runs it.
type kafkaServer interface {
	Addrs() []string
	Close() error
}

// provider starts servers.
type provider interface {
	startPostgres(ctx context.Context, major int) (postgresServer, error)
	startKafka(ctx context.Context) (kafkaServer, error)
}

// providerVariable chooses the provider: "local" processes, "containers", or "auto", the default, which takes local
// processes for PostgreSQL and, for Kafka, what the machine has.
const providerVariable = "CDC_RELAY_TEST_PROVIDER"

func postgresProvider() (provider, error) {
	switch name := os.Getenv(providerVariable); name {
	case "", "auto", "local":
		return local{}, nil
	case "containers":
		return containers{}, nil
	default:
		return nil, fmt.Errorf("%s is %q: use auto, local or containers", providerVariable, name)
	}
}

func kafkaProvider(ctx context.Context) (provider, error) {
	name := os.Getenv(providerVariable)
	if name != "" && name != "auto" {
		return postgresProvider()
	}
	missing := localstack.HaveJava()
	if missing == nil {
		return local{}, nil
	}
	if haveDocker(ctx) {
		return containers{}, nil
	}
	if os.Getenv("CI") == "true" {
		return nil, missing
	}
	progress(missing.Error() + " (or Docker); the in-process broker serves as far as it can")
	return inProcess{}, nil
}

func haveDocker(ctx context.Context) bool {
	docker, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(quiet{}))
	if err != nil {
		return false
	}
	defer docker.Close()
	return docker.Health(ctx) == nil
}

// local runs servers as processes of this machine.
type local struct{}

func (local) startPostgres(ctx context.Context, major int) (postgresServer, error) {
	return localstack.StartPostgres(ctx, localstack.PostgresConfig{Major: major, NoSync: true, Progress: progress})
}

func (local) startKafka(ctx context.Context) (kafkaServer, error) {
	return localstack.StartKafka(ctx, localstack.KafkaConfig{Progress: progress})
}

// inProcess has a broker within the test binary, for where there is no other.
type inProcess struct{ local }

func (inProcess) startKafka(context.Context) (kafkaServer, error) { return localstack.StartFake(1) }
