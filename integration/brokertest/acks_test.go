package brokertest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestAllReplicasAcknowledge: every produce request wants the acknowledgement of all in-sync replicas, which is what the
// confirmed position rests on, and gives the broker time for it.
func TestAllReplicasAcknowledge(t *testing.T) {
	t.Parallel()
	f := fake(t)
	createTopic(t, f.Addrs(), "acks", 1)
	var mu sync.Mutex
	var asked []string
	f.Cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.Cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		if p, ok := req.(*kmsg.ProduceRequest); ok {
			asked = append(asked, fmt.Sprintf("acks %d, with time: %v", p.Acks, p.TimeoutMillis > 0))
		}
		return nil, nil, false
	})
	p := startPublisher(t, publish.Config{}, openBroker(t, broker.Config{Brokers: f.Addrs()}))
	for i := range 3 {
		p.put("acks", []byte("key"), fmt.Append(nil, i))
		p.drain(soon)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := slices.Repeat([]string{"acks -1, with time: true"}, 3); !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}
