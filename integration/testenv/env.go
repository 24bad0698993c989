package testenv

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// Option changes what New sets up.
type Option func(*options)

type options struct {
	server    *localstack.Postgres
	major     int
	realKafka bool
	noKafka   bool
}

// PostgresMajor asks for a major version. Default: the newest.
func PostgresMajor(major int) Option { return func(o *options) { o.major = major } }

// OnPostgres takes a server of the test's own instead of the shared one.
func OnPostgres(server *localstack.Postgres) Option { return func(o *options) { o.server = server } }

// RealKafka skips the test where there is only the in-process broker.
func RealKafka() Option { return func(o *options) { o.realKafka = true } }

// NoKafka leaves Brokers empty.
func NoKafka() Option { return func(o *options) { o.noKafka = true } }

// Env is what one test has for itself. It is removed when the test ends.
type Env struct {
	// URL connects to the test's own database as superuser.
	URL string
	// Slot and Publication are names that no other test uses. New creates neither; the slot is dropped at the end.
	Slot, Publication string
	// Brokers are addresses of the shared cluster.
	Brokers []string
	// Real says that Brokers are real Kafka.
	Real bool
	// Prefix begins every topic name of the test.
	Prefix string

	t     testing.TB
	admin string // URL of the maintenance database
}

// New starts the shared servers if need be and gives the test a database, names and a topic prefix.
func New(t testing.TB, opts ...Option) *Env {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	ctx := t.Context()
	server, err := postgresServer(o.server), error(nil)
	if o.server == nil {
		server, err = shared.server(ctx, o.major)
	}
	if err != nil {
		t.Fatal(err)
	}
	name := uniqueName(t.Name())
	e := &Env{
		URL: server.URL(name), admin: server.URL("postgres"),
		Slot: name, Publication: name, Prefix: name + ".", t: t,
	}
	if !o.noKafka {
		if e.Brokers, e.Real, err = shared.brokers(ctx); err != nil {
			t.Fatal(err)
		}
		if o.realKafka && !e.Real {
			t.Skip("needs real Kafka")
		}
	}
	e.adminExec(ctx, "CREATE DATABASE "+name)
	t.Cleanup(e.remove)
	return e
}

var unusual = regexp.MustCompile(`[^a-z0-9]+`)

// uniqueName makes a name that is valid, unquoted, for a database, a slot and a topic.
func uniqueName(test string) string {
	name := unusual.ReplaceAllString(strings.TrimPrefix(strings.ToLower(test), "test"), "_")
	return "t_" + name[:min(30, len(name))] + "_" + strconv.FormatUint(uint64(rand.Uint32()), 36)
}

// remove ends who still holds the slot, drops it and then the database.
func (e *Env) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, e.admin)
	if err != nil {
		e.t.Log("clean up:", err) // The test may have stopped the server.
		return
	}
	defer conn.Close(ctx)
	name := strings.TrimSuffix(e.Prefix, ".")
	for ctx.Err() == nil {
		_, err = conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = $1 AND active`, name)
		if err == nil {
			_, err = conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`, name)
		}
		if err == nil {
			_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		}
		if err == nil {
			return
		}
		_ = Pause(ctx, 50*time.Millisecond)
	}
	e.t.Log("clean up:", err)
}

func (e *Env) adminExec(ctx context.Context, sql string) {
	e.t.Helper()
	conn, err := pgx.Connect(ctx, e.admin)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		e.t.Fatal(err)
	}
}

// Conn opens a connection to the test's database that is closed when the test ends.
func (e *Env) Conn() *pgx.Conn {
	e.t.Helper()
	conn, err := pgx.Connect(e.t.Context(), e.URL)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// Exec runs statements in the test's database.
func (e *Env) Exec(sql string, args ...any) {
	e.t.Helper()
	conn, err := pgx.Connect(e.t.Context(), e.URL)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(e.t.Context(), sql, args...); err != nil {
		e.t.Fatal(err)
	}
}

// Topic returns the full name of a topic of this test.
func (e *Env) Topic(name string) string { return e.Prefix + name }

// CreateTopic creates the topic Prefix+name with replication factor 1 unless the brokers default to more, and returns
// its full name.
func (e *Env) CreateTopic(name string, partitions int, config ...string) string {
	e.t.Helper()
	full := e.Topic(name)
	if err := createTopic(e.t.Context(), e.Brokers, full, partitions, config); err != nil {
		e.t.Fatal(err)
	}
	return full
}

// createTopic takes the topic's configuration as names, each followed by its value.
func createTopic(ctx context.Context, brokers []string, name string, partitions int, config []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(partitions), -1
	for i := 0; i+1 < len(config); i += 2 {
		setting := kmsg.NewCreateTopicsRequestTopicConfig()
		setting.Name, setting.Value = config[i], new(config[i+1])
		topic.Configs = append(topic.Configs, setting)
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	for _, topic := range response.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return fmt.Errorf("create topic %s: %w", name, err)
		}
	}
	return waitTopic(ctx, client, name, partitions)
}

// waitTopic waits until the brokers that clients ask know the topic and its leaders.
func waitTopic(ctx context.Context, client *kgo.Client, name string, partitions int) error {
	for {
		request := kmsg.NewPtrMetadataRequest()
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = new(name)
		request.Topics = append(request.Topics, topic)
		response, err := request.RequestWith(ctx, client)
		if err == nil && len(response.Topics) == 1 && response.Topics[0].ErrorCode == 0 && len(response.Topics[0].Partitions) == partitions {
			return nil
		}
		if cause := Pause(ctx, 20*time.Millisecond); cause != nil {
			return fmt.Errorf("wait for topic %s: %w: %w", name, cause, err)
		}
	}
}
