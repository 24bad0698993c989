package outage_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

var memoryRows = flag.Int("memory.rows", 60_000, "rows of 1 KB in the transaction of TestMemory; 1000000 is the full size")

// maxResident is the most memory that the relay's process may ever have held.
const maxResident = 64 << 20

// One large transaction against a slow broker costs no more memory than the budget allows. The broker takes 8 MB/s,
// about a tenth of what the relay can drain.
func TestMemory(t *testing.T) {
	var cluster testenv.Cluster
	defer cluster.Close()
	cluster.Start(t, localstack.KafkaConfig{})
	p := cluster.Proxy()
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = cluster.Kafka.Addrs()
	env.CreateTopic("order", 4)
	r := env.StartRelay(testenv.RelayOptions{
		Plain:    true,
		Settings: testenv.Settings{"kafka.brokers": []string{p.Addr()}},
		Args:     []string{"--init"},
	})
	r.WaitReady(patience)
	p.Limit(proxy.ToServer, 8<<20)
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
		SELECT 'order', 'k' || g % 1000, 'T', jsonb_build_object('n', g, 'filler', repeat('x', 1000)) FROM generate_series(1, $1::int) g`, *memoryRows)
	var mostInFlight float64
	limit := time.Minute + time.Duration(*memoryRows)*time.Millisecond
	testenv.Until(t, limit, func(context.Context) error {
		var inFlight float64
		if _, err := fmt.Sscan(metric(t, r, "cdc_relay_in_flight_bytes"), &inFlight); err != nil {
			return err
		}
		mostInFlight = max(mostInFlight, inFlight)
		if got := metric(t, r, "cdc_relay_messages_received_total"); !sameNumber(got, *memoryRows) {
			return fmt.Errorf("%s of %d rows read", got, *memoryRows)
		}
		if inFlight > 0 {
			return errors.New("rows are in flight")
		}
		return nil
	})
	peak := resident(t, r.PID())
	t.Logf("%d rows of 1 KB: peak memory %d KiB, at most %.0f KiB in flight", *memoryRows, peak>>10, mostInFlight/1024)
	if peak >= maxResident {
		t.Errorf("peak memory is %d KiB, want less than %d", peak>>10, maxResident>>10)
	}
	p.Heal()
	r.Stop(patience)
}

func sameNumber(text string, n int) bool {
	var f float64
	_, err := fmt.Sscan(text, &f)
	return err == nil && int(f) == n
}

// resident is the kernel's high-water mark of a process's memory, in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int64
			if _, err := fmt.Sscanf(text, "%d kB", &kib); err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
