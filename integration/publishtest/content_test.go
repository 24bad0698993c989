package publishtest

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// codecs by their number in a batch's attributes.
var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// sizes inserts rows whose values, from 33 bytes to 96 KB, are their number, the checksum of the rest, and the rest.
const sizes = `INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
	SELECT 'order', 'key-' || g % 100, g || ':' || md5(body) || ':' || body
	FROM generate_series(1, $1::int) g, LATERAL (SELECT repeat(md5(g::text),
		CASE WHEN g % 2000 = 0 THEN 3000 WHEN g % 100 = 0 THEN 300 ELSE g % 20 END)) AS b (body)`

// Every codec delivers every row once, whole and in its key's order, while the broker is slow and rows wait in all the
// buffers there are. The relays share a table and each has its slot.
func allCodecs(t *testing.T, s *scene.Scene, p *proxy.Proxy) {
	const rows, partitions = 20_000, 4
	relays := map[string]*testenv.Relay{}
	for _, codec := range codecs {
		s.CreateTopic(codec+"-order", partitions)
		relays[codec] = s.Start(testenv.Settings{
			"kafka.brokers": p.Addr(), "kafka.compression": codec, "postgres.slot": s.Slot + "_" + codec,
			"routing.topic": s.Prefix + codec + "-{aggregatetype}", "limits.in_flight_bytes": "2MiB",
		})
	}
	p.Limit(proxy.ToServer, 1<<20)
	defer p.Heal()
	began := time.Now()
	s.Exec(sizes, rows)
	var all sync.WaitGroup
	for number, codec := range codecs {
		all.Go(func() { judgeCodec(t, s.Brokers, number, s.Topic(codec+"-order"), rows) })
	}
	all.Wait()
	t.Logf("%d rows by each codec in %v", rows, time.Since(began).Round(time.Millisecond))
	for codec, r := range relays {
		if t.Failed() {
			t.Logf("%s: %s", codec, r.Output())
		}
		s.Stop(r)
	}
}

// judgeCodec reads until it has all rows or the time is over.
func judgeCodec(t *testing.T, brokers []string, codec int, topic string, rows int) {
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close()
	seen, last, compressed := 0, map[string]int{}, 0
	for seen < rows {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Errorf("%s: %d of %d records", topic, seen, rows)
			return
		}
		fetches.EachRecord(func(r *kgo.Record) {
			seen++
			n, err := checked(r.Value)
			if err != nil {
				t.Errorf("%s[%d]@%d: %v", topic, r.Partition, r.Offset, err)
			}
			if key := string(r.Key); n <= last[key] || key != fmt.Sprintf("key-%d", n%100) {
				t.Errorf("%s[%d]@%d: row %d of key %s comes after row %d", topic, r.Partition, r.Offset, n, key, last[key])
			}
			last[string(r.Key)] = n
			if int(r.Attrs.CompressionType()) == codec {
				compressed++
			}
		})
	}
	if compressed < seen*9/10 {
		t.Errorf("%s: %d of %d records use the codec", topic, compressed, seen)
	}
}

// checked returns the number in a value of sizes, if the value is whole.
func checked(value []byte) (n int, err error) {
	number, rest, _ := strings.Cut(string(value), ":")
	want, body, ok := strings.Cut(rest, ":")
	sum := md5.Sum([]byte(body))
	if _, err := fmt.Sscan(number, &n); err != nil || !ok || hex.EncodeToString(sum[:]) != want {
		return n, fmt.Errorf("the value %.60q does not have its checksum", value)
	}
	return n, nil
}
