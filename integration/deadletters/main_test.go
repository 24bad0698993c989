// Package deadletters gives the cdc-relay binary rows that cannot be published, on real servers: what becomes of them, of
// their neighbours and of the position, and how they come back.
package deadletters

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	patience = scene.Patience
	user     = "relay"
	password = "s3cret-password"
	// topicLimit is the largest batch that the topics of these tests take, unless they are told otherwise.
	topicLimit = 16 << 10
)

// shared is one broker for all tests, which has permissions, and a proxy in front of it. It is a package variable because
// testing offers no other way from TestMain to a test.
var shared struct {
	testenv.Cluster
	mine sync.Mutex // held by the test that uses the proxy
}

func TestMain(m *testing.M) {
	testenv.Parallel(max(6, runtime.GOMAXPROCS(0))) // These tests wait more than they compute.
	os.Exit(testenv.Main(m, shared.Close))
}

// stage is one test's outbox, topics and relay. The topic order has one partition and takes no large records.
type stage struct {
	*scene.Scene
	t     *testing.T
	topic string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	shared.Start(t, localstack.KafkaConfig{
		Users: map[string]string{user: password},
		Properties: map[string]string{
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":           "User:ANONYMOUS", // whoever comes without SASL: the brokers, this package
		},
	})
	return newStageOn(t, shared.Kafka.Addrs())
}

func newStageOn(t *testing.T, brokers []string) *stage {
	t.Helper()
	s := &stage{Scene: scene.New(t, brokers), t: t}
	s.Exec(`ALTER TABLE public.outbox ADD type text, ADD headers jsonb`)
	s.topic = s.CreateTopic("order", 1, "max.message.bytes", fmt.Sprint(topicLimit))
	return s
}

// failing is a stage whose broker answers with the code to what is produced to the topic short, until heal is called. It is
// an in-process broker: a real one needs others to be lost for that.
func failing(t *testing.T, code *kerr.Error) (s *stage, short string, heal func()) {
	t.Helper()
	f, err := localstack.StartFake(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	s = newStageOn(t, f.Addrs())
	short = s.CreateTopic("short", 1)
	var healed atomic.Bool
	f.Cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.Cluster.KeepControl()
		produce, ok := req.(*kmsg.ProduceRequest)
		if !ok || healed.Load() || !slices.ContainsFunc(produce.Topics, func(t kmsg.ProduceRequestTopic) bool { return t.Topic == short }) {
			return nil, nil, false
		}
		response := kmsg.NewPtrProduceResponse()
		response.SetVersion(produce.GetVersion())
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic = short
		partition := kmsg.NewProduceResponseTopicPartition()
		partition.ErrorCode = code.Code
		topic.Partitions = append(topic.Partitions, partition)
		response.Topics = append(response.Topics, topic)
		return response, nil, true
	})
	return s, short, func() { healed.Store(true) }
}

// viaProxy returns the proxy, which the test has for itself until it ends.
func viaProxy(t *testing.T) *proxy.Proxy {
	t.Helper()
	shared.mine.Lock()
	t.Cleanup(func() {
		shared.Heal()
		shared.mine.Unlock()
	})
	return shared.Proxy()
}

// large is a value that the topic order does not take. It begins with the text.
func large(text string) string { return text + strings.Repeat("x", topicLimit) }

// head is a value without the padding of large.
func head(value string) string { return strings.TrimRight(value, "x") }

// with returns the settings with more put over them.
func with(settings, more testenv.Settings) testenv.Settings {
	out := maps.Clone(settings)
	if out == nil {
		out = testenv.Settings{}
	}
	maps.Copy(out, more)
	return out
}

// widen has the topic take large records from now on.
func (s *stage) widen() {
	s.t.Helper()
	s.Set(s.topic, "max.message.bytes", "4194304")
}

// holds waits until the topic has as many records as there are values, and fails the test unless they are these values,
// without padding, in this order.
func (s *stage) holds(topic string, want ...string) []testenv.Record {
	s.t.Helper()
	records := s.Consume(topic, len(want), patience)
	var got []string
	for _, value := range scene.Values(records) {
		got = append(got, head(value))
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("topic %s holds %q, want %q", topic, got, want)
	}
	return records
}

// heads are the values of dead letters, without padding.
func heads(letters []scene.Letter) []string {
	var out []string
	for _, l := range letters {
		out = append(out, head(string(l.Value)))
	}
	return out
}

// ids are the numbers of dead letters.
func ids(letters []scene.Letter) []int64 {
	var out []int64
	for _, l := range letters {
		out = append(out, l.ID)
	}
	return out
}

// discard gives dead letters up.
func (s *stage) discard(letters ...int64) {
	s.t.Helper()
	s.Exec(`UPDATE public.cdc_relay_dead_letter SET state = 'discarded' WHERE id = ANY ($1)`, letters)
}

// messageID is the id of the outbox row with this value, without padding.
func (s *stage) messageID(value string) string {
	s.t.Helper()
	return s.Text(`SELECT id FROM public.outbox WHERE rtrim(payload, 'x') = $1`, value)
}

// until waits until a metric, whose name may end with labels, has a value.
func (s *stage) until(r *testenv.Relay, metric string, want float64) {
	s.t.Helper()
	testenv.Until(s.t, patience, func(context.Context) error {
		if got := scene.Metric(s.t, r, metric); got != want {
			return fmt.Errorf("%s is %v, want %v", metric, got, want)
		}
		return nil
	})
}

// ready fails the test unless the relay is ready now.
func (s *stage) ready(r *testenv.Relay) {
	s.t.Helper()
	if status, text, err := r.Get(s.t.Context(), "/readyz"); status != 200 {
		s.t.Errorf("/readyz answers %d (%v): %s", status, err, text)
	}
}
