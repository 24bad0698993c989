package brokertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/kafkaadmin"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// tail is one partition, written by another client and read by ours.
type tail struct {
	t      *testing.T
	addrs  []string
	topic  string
	broker *broker.Broker
}

func newTail(t *testing.T, addrs []string, config ...string) *tail {
	t.Helper()
	topic := strings.ReplaceAll(t.Name(), "/", ".") + "." + rand.Text()
	createTopic(t, addrs, topic, 1, config...)
	b := openBroker(t, broker.Config{Brokers: addrs})
	testenv.Until(t, soon, func(ctx context.Context) error { // Until the brokers have heard of it.
		_, err := b.Partitions(ctx, topic)
		return err
	})
	return &tail{t: t, addrs: addrs, topic: topic, broker: b}
}

// row is a record with a header "pos".
func row(key, pos string) *kgo.Record {
	return &kgo.Record{
		Key: []byte(key), Value: bytes.Repeat([]byte("x"), 100),
		Headers: []kgo.RecordHeader{{Key: "other", Value: []byte("o")}, {Key: "pos", Value: []byte(pos)}},
	}
}

func rows(from, n int) (out []*kgo.Record) {
	for i := range n {
		out = append(out, row(fmt.Sprintf("k%d", from+i), fmt.Sprint(from+i)))
	}
	return out
}

// write sends records as one batch.
func (w *tail) write(client *kgo.Client, records ...*kgo.Record) {
	w.t.Helper()
	for _, r := range records {
		r.Topic = w.topic
	}
	if err := client.ProduceSync(w.t.Context(), records...).FirstErr(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *tail) client(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	return newClient(w.t, w.addrs, append(opts, kgo.ProducerLinger(200*time.Millisecond), kgo.MaxBufferedRecords(1_000_000))...)
}

func (w *tail) offsets() broker.Offsets {
	w.t.Helper()
	o, err := w.broker.Offsets(w.t.Context(), w.topic, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// read reads from an offset to the end, and checks that every step gets on.
func (w *tail) read(from int64, maxBytes int) (out []string, fetches int) {
	w.t.Helper()
	end := w.offsets().End
	for from < end {
		last := from - 1
		next, err := w.broker.Fetch(w.t.Context(), w.topic, 0, from, maxBytes, "pos", func(offset int64, value []byte) {
			if offset <= last {
				w.t.Fatalf("offset %d after %d", offset, last)
			}
			last = offset
			if value == nil {
				out = append(out, fmt.Sprintf("%d none", offset))
				return
			}
			out = append(out, fmt.Sprintf("%d %s", offset, value))
		})
		if err != nil {
			w.t.Fatal(err)
		}
		if next <= from || next <= last {
			w.t.Fatalf("next is %d after reading %d to %d", next, from, last)
		}
		from = next
		fetches++
	}
	// The marker of a transaction may have come meanwhile.
	next, err := w.broker.Fetch(w.t.Context(), w.topic, 0, from, maxBytes, "pos", func(offset int64, _ []byte) {
		w.t.Errorf("record %d beyond the end %d", offset, end)
	})
	if err != nil || next < from || next > from+1 {
		w.t.Errorf("fetch at the end %d = %d, %v", from, next, err)
	}
	return out, fetches
}

// want compares with the offsets and headers "from from", "from+1 from+1" and so on.
func (w *tail) want(got []string, from, n int) {
	w.t.Helper()
	var want []string
	for i := from; i < from+n; i++ {
		want = append(want, fmt.Sprintf("%d %d", i, i))
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("read %q, want %q", got, want)
	}
}

// TestFetchCodecs: every codec, from the start and from within a batch, and empty before anything is written.
func TestFetchCodecs(t *testing.T) {
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTail(t, kafka(t).kafka.Addrs())
			if o := w.offsets(); o != (broker.Offsets{}) {
				t.Errorf("offsets of an empty partition: %+v", o)
			}
			w.read(0, 1<<20)
			c := w.client(kgo.ProducerBatchCompression(codec))
			w.write(c, rows(0, 50)...)
			w.write(c, rows(50, 50)...)
			if o := w.offsets(); o != (broker.Offsets{End: 100}) {
				t.Errorf("offsets %+v, want 0 to 100", o)
			}
			got, fetches := w.read(0, 1<<20)
			if w.want(got, 0, 100); fetches != 1 {
				t.Errorf("%d fetches for two batches, want 1", fetches)
			}
			got, _ = w.read(73, 1<<20)
			w.want(got, 73, 27)
			got, _ = w.read(99, 1)
			w.want(got, 99, 1)
		})
	}
}

// TestFetchLimit: a batch that is cut, or larger than the limit, stops nothing.
func TestFetchLimit(t *testing.T) {
	w := newTail(t, kafka(t).kafka.Addrs())
	c := w.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	const batches, size = 8, 40
	for i := range batches {
		w.write(c, rows(i*size, size)...)
	}
	for _, limit := range []int{1, 100, 7_000, 9_999, 12_345, 1 << 20} {
		got, fetches := w.read(0, limit)
		w.want(got, 0, batches*size)
		if limit < 7_000 && fetches != batches || limit == 1<<20 && fetches != 1 {
			t.Errorf("limit %d: %d fetches", limit, fetches)
		}
	}
}

// TestFetchHeaders: none, null, empty, and the last of several.
func TestFetchHeaders(t *testing.T) {
	w := newTail(t, kafka(t).kafka.Addrs())
	h := func(pairs ...kgo.RecordHeader) *kgo.Record { return &kgo.Record{Value: []byte("v"), Headers: pairs} }
	pos := func(v string) kgo.RecordHeader { return kgo.RecordHeader{Key: "pos", Value: []byte(v)} }
	w.write(w.client(), h(), h(kgo.RecordHeader{Key: "pos"}), h(pos("")), h(pos("a"), pos("b"), kgo.RecordHeader{Key: "sop", Value: []byte("c")}),
		&kgo.Record{Headers: []kgo.RecordHeader{pos("null key and value")}})
	got, _ := w.read(0, 1<<20)
	if want := []string{"0 none", "1 none", "2 ", "3 b", "4 null key and value"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
}

// TestFetchTransactions: what a transaction wrote is read whatever became of it, its markers are stepped over, at the
// tail too.
func TestFetchTransactions(t *testing.T) {
	for name, servers := range map[string]func(t *testing.T) []string{
		"real": func(t *testing.T) []string { return kafka(t).kafka.Addrs() },
		"fake": func(t *testing.T) []string { return fake(t).Addrs() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTail(t, servers(t))
			c := w.client(kgo.TransactionalID(w.topic))
			transaction := func(end kgo.TransactionEndTry, records ...*kgo.Record) {
				t.Helper()
				if err := c.BeginTransaction(); err != nil {
					t.Fatal(err)
				}
				w.write(c, records...)
				if err := c.EndTransaction(t.Context(), end); err != nil {
					t.Fatal(err)
				}
			}
			transaction(kgo.TryCommit, row("a", "0")) // 0, marker 1
			transaction(kgo.TryAbort, row("b", "2"))  // 2, marker 3
			w.wantTail("0 0", "2 2")
			transaction(kgo.TryCommit, row("c", "4"))
			if err := c.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			w.write(c, row("d", "6")) // Still open.
			w.wantTail("0 0", "2 2", "4 4", "6 6")
			if err := c.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
				t.Fatal(err)
			}
			w.wantTail("0 0", "2 2", "4 4", "6 6")
			testenv.Until(t, soon, func(context.Context) error { // A marker may come a little later.
				if o := w.offsets(); o.End != 8 {
					return fmt.Errorf("the end is %d, want 8", o.End)
				}
				return nil
			})
		})
	}
}

// wantTail reads everything, in one go and batch by batch.
func (w *tail) wantTail(want ...string) {
	w.t.Helper()
	for _, limit := range []int{1 << 20, 1} {
		if got, _ := w.read(0, limit); !slices.Equal(got, want) {
			w.t.Errorf("read %q, want %q", got, want)
		}
	}
}

// TestFetchCompacted: batches that compaction has thinned out or emptied are stepped over in one go.
func TestFetchCompacted(t *testing.T) {
	w := newTail(t, kafka(t).kafka.Addrs(), "cleanup.policy", "compact", "segment.ms", "500", "min.cleanable.dirty.ratio", "0.001",
		"max.compaction.lag.ms", "500")
	const n = 200
	w.write(w.client(), rows(0, n)...) // Every one is written again: the batch is emptied, but stays as its producer's last.
	again := append(rows(0, n), row("last", "x"))
	w.write(w.client(), again...)
	thin := w.client()
	w.write(thin, rows(n/2, n/2)...) // Thins out the batch before.
	clock := 0
	testenv.Until(t, 60*time.Second, func(ctx context.Context) error {
		clock++
		w.write(thin, row(fmt.Sprint("clock", clock), "y")) // The segment in use is not compacted: begin the next.
		if got, _ := w.read(0, 1<<20); !strings.HasPrefix(got[0], fmt.Sprint(n)+" ") || strings.HasPrefix(got[n/2], fmt.Sprint(n+n/2)+" ") {
			return fmt.Errorf("not compacted yet: %d records", len(got))
		}
		return ctx.Err()
	})
	got, fetches := w.read(0, 1)
	if batches := 4 + len(got); fetches > batches {
		t.Errorf("%d fetches for %d batches at most", fetches, batches)
	}
	// From every offset, deleted ones too, the same records follow.
	for from := int64(0); from < 2*n; from += 37 {
		i := slices.IndexFunc(got, func(r string) bool {
			var at int64
			_, err := fmt.Sscan(r, &at)
			return err == nil && at >= from
		})
		if rest, _ := w.read(from, 1<<20); !slices.Equal(rest, got[i:]) {
			t.Errorf("from %d: %d records, want %d", from, len(rest), len(got)-i)
		}
	}
}

// TestFetchDeletedHead: what was deleted is out of range, as is what was never written.
func TestFetchDeletedHead(t *testing.T) {
	w := newTail(t, kafka(t).kafka.Addrs())
	c := w.client()
	w.write(c, rows(0, 10)...)
	kafkaadmin.New(t, w.addrs).DeleteRecords(w.topic, []int64{4})
	if o := w.offsets(); o != (broker.Offsets{First: 4, End: 10}) {
		t.Errorf("offsets %+v, want 4 to 10", o)
	}
	got, _ := w.read(4, 1)
	w.want(got, 4, 6)
	for _, offset := range []int64{3, 11} {
		next, err := w.broker.Fetch(t.Context(), w.topic, 0, offset, 1<<20, "pos", func(int64, []byte) { t.Error("a record") })
		if broker.Code(err) != 1 || next != offset {
			t.Errorf("fetch from %d = %d, %v; want code 1", offset, next, err)
		}
	}
}

// TestFetchDenied: without permission it is code 29, said with the next step. To read needs another permission than to
// write and to describe.
func TestFetchDenied(t *testing.T) {
	k := kafka(t)
	w := newTail(t, k.kafka.Addrs())
	w.write(w.client(), rows(0, 1)...)
	admin := kafkaadmin.New(t, w.addrs)
	admin.Grant(user, w.topic, kmsg.ACLOperationWrite) // Which includes to describe.
	b := openBroker(t, broker.Config{
		Brokers: k.kafka.AddrsOf(localstack.SASLPlaintext),
		SASL:    broker.SASLConfig{Mechanism: "PLAIN", Username: user, Password: password},
	})
	if o, err := b.Offsets(t.Context(), w.topic, 0); err != nil || o.End != 1 {
		t.Errorf("Offsets = %+v, %v", o, err)
	}
	_, err := b.Fetch(t.Context(), w.topic, 0, 0, 1<<20, "pos", func(int64, []byte) { t.Error("a record") })
	if broker.Code(err) != 29 || !strings.Contains(err.Error(), w.topic+"[0]") || !strings.Contains(err.Error(), "needs Write and Describe, and Read") {
		t.Errorf("Fetch = %v, want code 29 and a hint", err)
	}
	createTopic(t, w.addrs, w.topic+".hidden", 1)
	admin.Grant("somebody", w.topic+".hidden", kmsg.ACLOperationRead)
	if _, err := b.Offsets(t.Context(), w.topic+".hidden", 0); err == nil {
		t.Error("the offsets of a topic that may not be described")
	}
}

// TestFetchNoPartition: an error names what is not there.
func TestFetchNoPartition(t *testing.T) {
	w := newTail(t, fake(t).Addrs())
	for topic, partition := range map[string]int{w.topic: 7, "no-such-topic": 0} {
		name := fmt.Sprintf("%s[%d]", topic, partition)
		if _, err := w.broker.Offsets(t.Context(), topic, partition); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Offsets of %s = %v", name, err)
		}
		if _, err := w.broker.Fetch(t.Context(), topic, partition, 0, 1, "pos", nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Fetch of %s = %v", name, err)
		}
	}
}

// TestFetchThrottled: an answer without contents, which a quota leads to, is waited out.
func TestFetchThrottled(t *testing.T) {
	f := fake(t)
	w := newTail(t, f.Addrs())
	w.write(w.client(), rows(0, 3)...)
	throttled := 0
	f.Cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		throttled++
		res := req.ResponseKind().(*kmsg.FetchResponse)
		res.ThrottleMillis = 50
		return res, nil, true
	})
	start := time.Now()
	got, _ := w.read(0, 1<<20)
	if w.want(got, 0, 3); throttled != 1 || time.Since(start) < 50*time.Millisecond {
		t.Errorf("%d throttled answers, %s", throttled, time.Since(start))
	}
}

// TestFetchCodes: refusals arrive as codes.
func TestFetchCodes(t *testing.T) {
	f := fake(t)
	w := newTail(t, f.Addrs())
	for _, code := range []int16{6, 78} {
		f.Cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
			res := req.ResponseKind().(*kmsg.ListOffsetsResponse)
			partition := kmsg.NewListOffsetsResponseTopicPartition()
			partition.ErrorCode = code
			topic := kmsg.NewListOffsetsResponseTopic()
			topic.Topic, topic.Partitions = w.topic, append(topic.Partitions, partition)
			res.Topics = append(res.Topics, topic)
			return res, nil, true
		})
		_, err := w.broker.Offsets(t.Context(), w.topic, 0)
		if e := new(broker.Error); broker.Code(err) != int(code) || !errors.As(err, &e) {
			t.Errorf("Offsets = %v, want code %d", err, code)
		}
	}
}
