package regress_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A single row on an idle system is not kept waiting for others.
func TestIdleLatency(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("order", 1)
	r := s.Start(nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn := s.Conn()
	var took []time.Duration
	for range 15 {
		if _, err := conn.Exec(ctx, `INSERT INTO public.outbox (aggregatetype, aggregateid, payload) VALUES ('order', 'k', '1')`); err != nil {
			t.Fatal(err)
		}
		committed := time.Now()
		for n := 0; n == 0; {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				t.Fatal(err)
			}
			n = fetches.NumRecords()
		}
		took = append(took, time.Since(committed))
	}
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("from commit to consumer: median %v, at most %v", median, took[len(took)-1])
	if limit := 500 * time.Millisecond; median > limit {
		t.Errorf("the median is %v, want less than %v", median, limit)
	}
	s.Stop(r)
}
