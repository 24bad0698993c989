package brokertest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestCompression publishes with each codec and reads back with another client.
func TestCompression(t *testing.T) {
	k := kafka(t)
	b := openBroker(t, broker.Config{Brokers: k.kafka.Addrs()})
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			const rows, partitions = 3000, 3
			topic := "compression-" + codec
			createTopic(t, k.kafka.Addrs(), topic, partitions)
			p := startPublisher(t, publish.Config{Compression: codec}, b)
			want := make(map[string][]byte)
			for i := range rows {
				value := bytes.Repeat(fmt.Appendf(nil, "value %d. ", i), 20)
				p.put(topic, fmt.Appendf(nil, "key-%d", i%100), value)
				want[fmt.Sprintf("id-%d", i+1)] = value
			}
			p.drain(30 * time.Second)
			last := map[string]uint32{}
			for _, r := range testenv.Consume(t, k.kafka.Addrs(), topic, rows, 30*time.Second) {
				id, _ := r.Header("id")
				if !bytes.Equal(r.Value, want[id]) {
					t.Fatalf("%s: value %q, want %q", id, r.Value, want[id])
				}
				delete(want, id)
				text, _ := r.Header(position.Header)
				stamp, err := position.Parse([]byte(text))
				if err != nil || stamp.Partitions != partitions || stamp.IDHash != position.HashID([]byte(id)) {
					t.Fatalf("%s: stamp %q: %v", id, text, err)
				}
				if stamp.Index <= last[string(r.Key)] {
					t.Fatalf("key %s out of order", r.Key)
				}
				last[string(r.Key)] = stamp.Index
			}
			if len(want) != 0 {
				t.Errorf("%d rows are missing", len(want))
			}
		})
	}
}
