package inboxkafkatests

import (
	"bytes"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
)

// A fetch ends wherever its size does, in the middle of a batch most of the time, and a record that is larger than what is
// asked for comes whole.
func TestFetchesThatEndInABatch(t *testing.T) {
	t.Parallel()
	const keys, each = 3, 30
	r := newRig(t, 1)
	for n := range each {
		records := r.events(keys, n+1, n+1) // a batch of about 6 KB
		size := 2_000
		if n == each/2 {
			size = 100_000
		}
		for _, record := range records {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: "padding", Value: bytes.Repeat([]byte{'x'}, size)})
		}
		r.send(records...)
	}
	r.member(func(_ *inbox.Config, c *inboxkafka.Config) { c.MaxBytes = 10_000 })
	r.until(keys * each)
	r.inOrder(keys, each)
	if s := r.log.String(); strings.Contains(s, "cannot fetch") {
		t.Errorf("a fetch failed:\n%s", s)
	}
}
