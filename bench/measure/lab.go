package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
)

const (
	database    = "postgres"
	publication = "cdc_relay"
	partitions  = 4
)

// Lab is the servers and the command that the measurements share. Its methods are called one after the other.
type Lab struct {
	opts   Options
	dir    string
	relay  string
	pg     *localstack.Postgres
	kafka  *localstack.Kafka
	slow   *proxy.Proxy // another way to Kafka, which can be made slow
	client *kgo.Client
	db     *pgx.Conn
	slots  int // made so far; numbers their names
	// claimed is the number of runs of messages so far; it makes their ids unique.
	claimed int
}

// Open builds the command and starts the servers. The caller closes the Lab.
func Open(ctx context.Context, opts Options) (_ *Lab, err error) {
	l := &Lab{opts: opts.withDefaults()}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.dir, err = os.MkdirTemp("", "cdc-relay-bench-"); err != nil {
		return nil, err
	}
	if err := l.build(ctx); err != nil {
		return nil, err
	}
	l.say("starting PostgreSQL and Kafka")
	if err := l.startServers(ctx); err != nil {
		return nil, err
	}
	if l.db, err = pgx.Connect(ctx, l.pg.URL(database)); err != nil {
		return nil, err
	}
	return l, l.prepare(ctx)
}

func (l *Lab) say(format string, args ...any) { l.opts.Progress(fmt.Sprintf(format, args...)) }

// build makes the command as a release is made.
func (l *Lab) build(ctx context.Context) error {
	if l.relay = l.opts.Relay; l.relay != "" {
		return nil
	}
	l.say("building the relay")
	const module = "github.com/cdc-relay/cdc-relay"
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("find module %s: %w", module, err)
	}
	l.relay = filepath.Join(l.dir, "cdc-relay")
	build := exec.CommandContext(ctx, "go", "-C", strings.TrimSpace(string(root)), "build", "-trimpath", "-o", l.relay, "./cmd/cdc-relay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build cdc-relay: %w: %s", err, output)
	}
	return nil
}

// startServers starts servers that do, while something is measured, nothing but what is measured.
func (l *Lab) startServers(ctx context.Context) (err error) {
	progress := localstack.Progress(l.opts.Progress)
	l.pg, err = localstack.StartPostgres(ctx, localstack.PostgresConfig{Progress: progress, Settings: map[string]string{
		"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB", "shared_buffers": "256MB",
	}})
	if err != nil {
		return err
	}
	l.slow, err = proxy.New(func() string { return l.kafka.AddrsOf(localstack.Proxied)[0] })
	if err != nil {
		return err
	}
	l.kafka, err = localstack.StartKafka(ctx, localstack.KafkaConfig{
		Progress: progress, Heap: "768m", FullJIT: true, Advertise: []string{l.slow.Addr()},
		Properties: map[string]string{"log.segment.delete.delay.ms": "1000"},
	})
	if err != nil {
		return err
	}
	l.client, err = kgo.NewClient(kgo.SeedBrokers(l.kafka.Addrs()...))
	return err
}

// prepare creates the outbox table, the publication, and the routine that fills the table.
func (l *Lab) prepare(ctx context.Context) error {
	first, err := l.newSlot(ctx)
	if err != nil {
		return err
	}
	if err := l.dropSlot(ctx, first); err != nil {
		return err
	}
	_, err = l.db.Exec(ctx, fillSQL)
	return err
}

// fillSQL commits transactions of so many rows each. The payload is about 229 bytes of jsonb, as text, and as many more
// as wanted.
const fillSQL = `
CREATE PROCEDURE bench_fill(transactions int, size int, more int) LANGUAGE plpgsql AS $$
BEGIN
  FOR t IN 0 .. transactions - 1 LOOP
    INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
    SELECT 'order', 'order-' || (t * size + i) % 1000, 'OrderPlaced', bench_payload(t * size + i, more)
      FROM generate_series(1, size) i;
    COMMIT;
  END LOOP;
END $$;
CREATE FUNCTION bench_payload(n int, more int) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_strip_nulls(jsonb_build_object(
    'n', n, 'order', 'order-' || n % 1000, 'customer', md5(n::text), 'currency', 'EUR', 'total', n % 500 + 0.99,
    'lines', jsonb_build_array(
      jsonb_build_object('sku', 'SKU-' || n % 7919, 'price', n % 500 + 0.99, 'quantity', 1 + n % 3),
      jsonb_build_object('sku', 'SKU-' || n % 6997, 'price', 12.50, 'quantity', 1)),
    'note', CASE WHEN more > 0 THEN left(repeat(md5(n::text), more / 32 + 1), more) END))
$$`

// Close stops the servers and removes what is left of the measurement.
func (l *Lab) Close() error {
	var errs []error
	if l.db != nil {
		errs = append(errs, l.db.Close(context.Background()))
	}
	if l.client != nil {
		l.client.Close()
	}
	if l.slow != nil {
		errs = append(errs, l.slow.Close())
	}
	if l.kafka != nil {
		errs = append(errs, l.kafka.Close())
	}
	if l.pg != nil {
		errs = append(errs, l.pg.Close())
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}
