package pipeline_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// One row that an ordinary transaction inserts arrives on the topic.
func TestFirstLight(t *testing.T) {
	env := testenv.New(t)
	topic := env.CreateTopic("order", 2)
	config := filepath.Join(t.TempDir(), "relay.yaml")
	os.WriteFile(config, []byte(fmt.Sprintf(`
postgres: {url: %q, slot: %s}
kafka: {brokers: [%q]}
routing: {topic: "%s{aggregatetype}"}
http: {listen: "127.0.0.1:0"}
`, env.URL, env.Slot, env.Brokers[0], env.Prefix)), 0o600)
	cmd := exec.Command("/tmp/plan/cdc-relay", "run", "--config", config, "--init")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	conn := env.Conn()
	testenv.Until(t, 20*time.Second, func(ctx context.Context) error {
		var active bool
		if err := conn.QueryRow(ctx, "SELECT active FROM pg_replication_slots WHERE slot_name = $1", env.Slot).Scan(&active); err != nil || !active {
			return fmt.Errorf("active %v: %v", active, err)
		}
		_, err := conn.Exec(ctx, `INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'o-1', 'OrderPlaced', '{"n": 1}')`)
		return err
	})
	for _, r := range env.Consume(topic, 1, 20*time.Second) {
		fmt.Printf("%+v key=%s value=%s\n", r, r.Key, r.Value)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}
