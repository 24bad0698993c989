package failover_test

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/integration/kafkaadmin"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// forget brings the slot back to where it was at the last checkpoint, so that a relay has to find out by itself what it
// has published since: the relay is killed, and then the server crashes.
func (s *site) forget() {
	s.t.Helper()
	s.relay.Kill()
	s.must(s.primary.Stop(s.t.Context(), localstack.Immediate))
	s.must(s.primary.Start(s.t.Context()))
}

// produce appends records with a position header that another version of the relay has written.
func (s *site) produce(records []testenv.Record, position func(testenv.Record) string) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	s.must(err)
	defer client.Close()
	for _, r := range records {
		id, _ := r.Header("id")
		s.must(client.ProduceSync(s.t.Context(), &kgo.Record{
			Topic: s.topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: []kgo.RecordHeader{
				{Key: "id", Value: []byte(id)},
				{Key: positionHeader, Value: []byte(position(r))},
			},
		}).FirstErr())
	}
}

// version returns a record's position header with another version in front, and with more behind it.
func version(v string) func(testenv.Record) string {
	return func(r testenv.Record) string {
		text, _ := r.Header(positionHeader)
		return v + text[1:] + ".00000000"
	}
}

// ours returns the records with a position of the version that this relay writes, and how many of them the slot has not
// confirmed.
func (s *site) ours(count int) (records []testenv.Record, unconfirmed int) {
	s.t.Helper()
	confirmed := parseLSN(s.t, s.slot("confirmed_flush_lsn"))
	for _, r := range s.Consume(s.topic, count, patience) {
		text, _ := r.Header(positionHeader)
		commit := commitOf(text)
		if commit == 0 {
			continue
		}
		records = append(records, r)
		if commit >= confirmed {
			unconfirmed++
		}
	}
	if unconfirmed == 0 {
		s.t.Error("the slot has not gone back: the test shows nothing")
	}
	return records, unconfirmed
}

// An upgrade, or the way back from one, leaves records with another format of the position header on the topic. Beside
// records of its own the relay passes over them; alone they tell it nothing, and it publishes again what is not confirmed.
func TestOtherHeaderVersions(t *testing.T) {
	t.Parallel()
	s := newSite(t, testenv.Major(), nil)
	admin := kafkaadmin.New(t, s.Brokers)
	s.start(nil)
	s.insert(40)
	s.judge()

	s.forget()
	records, unconfirmed := s.ours(200)
	for i, r := range records[:50] {
		r.Headers = append([]testenv.Header{{Name: "id", Value: fmt.Appendf(nil, "strange %d", i)}}, r.Headers...)
		s.produce([]testenv.Record{r}, version("2"))
	}
	s.start(nil)
	s.insert(10)
	v := s.judge()
	if n := scene.Metric(t, s.relay, "cdc_relay_resume_rows_skipped_total"); n != float64(unconfirmed) || len(v.repeats) > 0 {
		t.Errorf("%v of %d rows are skipped and %d repeated, want what was published to be found before the strange records", n, unconfirmed, len(v.repeats))
	}
	if len(v.phantoms) != 50 {
		t.Errorf("%d strange records, want 50", len(v.phantoms))
	}

	s.forget()
	records, unconfirmed = s.ours(300)
	admin.DeleteRecords(s.topic, admin.Ends(s.topic))
	s.produce(records, version("2"))
	s.start(nil)
	s.insert(10)
	if v = s.judge(); len(v.repeats) != unconfirmed {
		t.Errorf("%d rows are repeated, want the %d that are not confirmed: their positions cannot be read", len(v.repeats), unconfirmed)
	}
	s.stop()
}
