package testenv

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// containers runs servers in Docker. CDC_RELAY_POSTGRES_IMAGE and CDC_RELAY_KAFKA_IMAGE name the images; default are the
// official ones. The image decides on the version of PostgreSQL.
type containers struct{}

func (containers) startPostgres(ctx context.Context, major int) (postgresServer, error) {
	image := cmp.Or(os.Getenv("CDC_RELAY_POSTGRES_IMAGE"), "postgres:"+strconv.Itoa(major))
	c, err := startContainer(ctx, image, "5432/tcp", func(*localstack.Port) []testcontainers.ContainerCustomizer {
		return []testcontainers.ContainerCustomizer{
			testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": localstack.PostgresPassword}),
			testcontainers.WithCmd("postgres", "-c", "wal_level=logical", "-c", "max_replication_slots=100",
				"-c", "max_wal_senders=100", "-c", "max_connections=200", "-c", "fsync=off"),
		}
	})
	if err != nil {
		return nil, err
	}
	server := postgresContainer{c}
	err = c.await(ctx, func(ctx context.Context) error {
		conn, err := pgconn.Connect(ctx, server.URL("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	return server, err
}

func (containers) startKafka(ctx context.Context) (kafkaServer, error) {
	image := cmp.Or(os.Getenv("CDC_RELAY_KAFKA_IMAGE"), "apache/kafka:4.3.1")
	c, err := startContainer(ctx, image, "9092/tcp", func(port *localstack.Port) []testcontainers.ContainerCustomizer {
		return []testcontainers.ContainerCustomizer{testcontainers.WithEnv(map[string]string{
			"KAFKA_NODE_ID":                                  "1",
			"KAFKA_PROCESS_ROLES":                            "broker,controller",
			"KAFKA_CONTROLLER_QUORUM_VOTERS":                 "1@localhost:9093",
			"KAFKA_CONTROLLER_LISTENER_NAMES":                "CONTROLLER",
			"KAFKA_LISTENERS":                                "PLAINTEXT://:9092,CONTROLLER://:9093",
			"KAFKA_ADVERTISED_LISTENERS":                     "PLAINTEXT://" + port.Addr(),
			"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":           "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
			"KAFKA_AUTO_CREATE_TOPICS_ENABLE":                "false",
			"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
			"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
			"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
			"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":         "0",
			"KAFKA_HEAP_OPTS":                                "-Xmx400m",
		})}
	})
	if err != nil {
		return nil, err
	}
	return kafkaContainer{c}, c.await(ctx, func(ctx context.Context) error {
		return localstack.ProbeKafka(ctx, c.port.Addr(), 1, 1)
	})
}

// runningContainer has one port of its own on 127.0.0.1, known before it starts: Kafka must tell its clients.
type runningContainer struct {
	container *testcontainers.DockerContainer
	port      *localstack.Port
}

type postgresContainer struct{ *runningContainer }

func (c postgresContainer) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(localstack.PostgresUser, localstack.PostgresPassword), Host: c.port.Addr(),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

type kafkaContainer struct{ *runningContainer }

func (c kafkaContainer) Addrs() []string { return []string{c.port.Addr()} }

// startContainer publishes the inner port and starts the image with the options for the outer one.
func startContainer(ctx context.Context, image, inner string,
	options func(*localstack.Port) []testcontainers.ContainerCustomizer,
) (*runningContainer, error) {
	port, err := localstack.ReservePort()
	if err != nil {
		return nil, err
	}
	publish := func(host *container.HostConfig) {
		host.PortBindings = network.PortMap{network.MustParsePort(inner): {
			{HostIP: netip.AddrFrom4([4]byte{127, 0, 0, 1}), HostPort: strconv.Itoa(port.Number())},
		}}
	}
	c, err := testcontainers.Run(ctx, image, append(options(port), testcontainers.WithExposedPorts(inner),
		testcontainers.WithHostConfigModifier(publish), testcontainers.WithLogger(quiet{}))...)
	running := &runningContainer{container: c, port: port}
	if err != nil {
		_ = running.Close()
		return nil, fmt.Errorf("start container %s: %w", image, err)
	}
	return running, nil
}

// await waits until the server in the container is ready, and removes it if that takes more than a minute.
func (c *runningContainer) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if cause := Pause(ctx, 50*time.Millisecond); cause != nil {
			_ = c.Close()
			return fmt.Errorf("wait for container: %w: %w", cause, err)
		}
	}
}

// Close removes the container and what it has stored.
func (c *runningContainer) Close() error {
	defer c.port.Release()
	return testcontainers.TerminateContainer(c.container, testcontainers.StopTimeout(0))
}

// quiet keeps testcontainers from logging every step.
type quiet struct{}

func (quiet) Printf(string, ...any) {}
