package deadletters

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// secret begins every key and value of TestPoison.
const secret = "for-consumers-only-"

// poison is a row that cannot be published, between two that can.
type poison struct {
	name   string
	topic  string // of its neighbours, full
	own    string // topic of the row, where it has another
	config []string
	value  string
	change string // SQL that is done to the row, before its commit
	reason string
}

// kinds are all that is known to be the row's own fault.
func (s *stage) kinds() []poison {
	const mib = 1 << 20
	long := func(n int) string { return secret + strings.Repeat("x", n) }
	topic := func(name string) string { return s.Topic(name) }
	return []poison{
		{name: "larger than the topic takes", topic: s.topic, value: long(topicLimit), reason: "too_large"},
		{
			name: "larger than a segment", topic: topic("segment"), value: long(mib * 3 / 2), reason: "too_large",
			config: []string{"segment.bytes", fmt.Sprint(mib), "max.message.bytes", fmt.Sprint(4 * mib)},
		},
		{
			name: "larger than is sent at all", topic: topic("wide"), value: long(3 * mib), reason: "too_large",
			config: []string{"max.message.bytes", fmt.Sprint(8 * mib)},
		},
		{
			name: "no key on a compacted topic", topic: topic("compact"), value: secret, reason: "invalid_record",
			config: []string{"cleanup.policy", "compact"}, change: `aggregateid = NULL`,
		},
		{
			name: "too old for the topic", topic: topic("recent"), value: secret, reason: "invalid_timestamp",
			config: []string{"message.timestamp.before.max.ms", "600000"}, change: `created_at = now() - interval '2 hours'`,
		},
		{name: "a name that no topic can have", topic: s.topic, own: "a/b", value: secret, reason: "invalid_topic"},
		{name: "NULL in what names the topic", topic: s.topic, value: secret, change: `aggregatetype = NULL`, reason: "invalid_row"},
		{name: "NULL in the id", topic: s.topic, value: secret, change: `mid = NULL`, reason: "invalid_row"},
	}
}

// spoil has the server change the rows as they are inserted: an update would not be published.
func (s *stage) spoil(kinds []poison) {
	s.t.Helper()
	var body strings.Builder
	for _, p := range kinds {
		if column, value, found := strings.Cut(p.change, " = "); found {
			fmt.Fprintf(&body, "IF NEW.mid = '%s' THEN NEW.%s := %s; END IF;\n", p.name, column, value)
		}
	}
	s.Exec(`CREATE FUNCTION public.spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + body.String() + ` RETURN NEW; END $$`)
	s.Exec(`CREATE TRIGGER spoil BEFORE INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.spoil()`)
}

// put inserts the row and its neighbours in one transaction, and returns the end of the WAL after it.
func (s *stage) put(p poison) (after string) {
	s.t.Helper()
	tx, err := s.Conn().Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	own := p.topic
	if p.own != "" {
		own = p.own
	}
	const insert = `INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload, mid) VALUES ($1, $2, 'OrderPlaced', $3, $4)`
	for _, row := range [][]any{
		{p.topic, secret + "key", "before: " + p.name, nil},
		{own, secret + "key", p.value, p.name},
		{p.topic, secret + "key", "behind: " + p.name, nil},
	} {
		if row[3] == nil {
			row[3] = row[2]
		}
		if _, err := tx.Exec(s.t.Context(), insert, row...); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := tx.Commit(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return s.Text(`SELECT pg_current_wal_insert_lsn()`)
}

// Every kind of row that cannot be published becomes a dead letter with all that it held. Its neighbours are published in
// their order, and the position passes it. Nothing of it is told elsewhere.
func TestPoison(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.Exec(`ALTER TABLE public.outbox ADD mid text, ADD created_at timestamptz DEFAULT now()`)
	kinds := s.kinds()
	for _, p := range kinds {
		if p.topic != s.topic {
			s.CreateTopic(strings.TrimPrefix(p.topic, s.Prefix), 1, p.config...)
		}
	}
	s.spoil(kinds)
	settings := testenv.Settings{
		"routing.topic": "{aggregatetype}", "outbox.columns": map[string]string{"id": "mid"}, "outbox.record_time": "created_at",
		"kafka.max_request_bytes": "2MiB", "breaker.share": 1,
	}
	r := s.Start(settings)
	published := map[string][]string{}
	for _, p := range kinds {
		s.Settled(s.put(p))
		published[p.topic] = append(published[p.topic], "before: "+p.name, "behind: "+p.name)
	}
	for topic, want := range published {
		s.holds(topic, want...)
	}
	letters := s.WaitLetters("dead", len(kinds))
	for i, p := range kinds {
		s.judgeLetter(letters[i], p)
	}
	s.ready(r)
	s.until(r, "cdc_relay_messages_dead_lettered_total", float64(len(kinds)))
	s.until(r, fmt.Sprintf(`cdc_relay_messages_dead_lettered_total{reason="invalid_record",topic="%s"}`, s.Topic("compact")), 1)
	s.until(r, `cdc_relay_messages_dead_lettered_total{reason="invalid_row",topic=""}`, 2)
	r.WaitOutput(kinds[0].name, patience) // its message id
	s.Stop(r)

	// A relay that is started anew passes them over.
	r = s.Start(settings)
	s.Settled(s.put(kinds[0]))
	s.WaitLetters("dead", len(kinds)+1)
	s.holds(s.topic, append(published[s.topic], published[s.topic][:2]...)...)
	s.tellsNothing(r)
	s.Stop(r)
}

// judgeLetter compares a dead letter with the row.
func (s *stage) judgeLetter(l scene.Letter, p poison) {
	s.t.Helper()
	want := scene.Letter{
		ID: l.ID, State: "dead", Reason: p.reason, Error: l.Error, Topic: p.topic, Source: "public.outbox", Type: "OrderPlaced",
		MessageID: []byte(p.name), Key: []byte(secret + "key"), Value: []byte(p.value), ValueBytes: int64(len(p.value)), Kept: true,
		Attempts: l.Attempts, RecordTime: l.RecordTime,
	}
	if p.own != "" {
		want.Topic = p.own
	}
	switch {
	case strings.HasPrefix(p.change, "aggregateid"):
		want.Key = nil
	case strings.HasPrefix(p.change, "aggregatetype"):
		want.Topic = ""
	case strings.HasPrefix(p.change, "mid"):
		want.MessageID = nil
	}
	got := l
	if string(got.Value) != p.value {
		s.t.Errorf("%s: a value of %d bytes is kept, want %d", p.name, len(got.Value), len(p.value))
	}
	got.Value, want.Value = nil, nil
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		s.t.Errorf("%s:\ngot  %+v\nwant %+v", p.name, got, want)
	}
	if l.Error == "" || strings.Contains(l.Error, secret) {
		s.t.Errorf("%s has the error %q", p.name, l.Error)
	}
	if p.reason == "invalid_row" {
		return // It has no time of its own when it could not be read.
	}
	if age := time.Since(l.RecordTime); age < 0 || age > 3*time.Hour {
		s.t.Errorf("%s has the record time %v", p.name, l.RecordTime)
	}
}

// tellsNothing fails the test when a key or a value is in what the relay has logged or shows.
func (s *stage) tellsNothing(r *testenv.Relay) {
	s.t.Helper()
	texts := []string{r.Output()}
	for _, path := range []string{"/readyz?verbose", "/metrics"} {
		_, text, err := r.Get(s.t.Context(), path)
		if err != nil {
			s.t.Error(err)
		}
		texts = append(texts, text)
	}
	if i := slices.IndexFunc(texts, func(text string) bool { return strings.Contains(text, secret) }); i >= 0 {
		s.t.Errorf("a row's content is told:\n%s", texts[i])
	}
}

// Several rows that the broker names in one answer become dead letters, and only they: their neighbours in the same batch
// are published in order.
func TestPoisonWithinBatch(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	topic := s.CreateTopic("compact", 1, "cleanup.policy", "compact")
	p := viaProxy(t)
	r := s.Start(testenv.Settings{"kafka.brokers": p.Addr(), "breaker.share": 1})
	// They gather behind a row that waits for its answer.
	p.Stall(proxy.ToClient)
	s.Insert("compact", "k", "first")
	s.until(r, "cdc_relay_in_flight_messages", 1)
	s.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, payload)
		SELECT 'compact', CASE WHEN g % 10 <> 3 THEN 'k' || g END, g::text FROM generate_series(1, 40) g`)
	s.until(r, "cdc_relay_in_flight_messages", 41)
	p.Heal()
	letters := s.WaitLetters("dead", 4)
	if got := heads(letters); !slices.Equal(got, []string{"3", "13", "23", "33"}) {
		t.Errorf("the dead letters are the rows %q", got)
	}
	want := []string{"first"}
	for _, value := range scene.Counted(1, 40) {
		if !strings.HasSuffix(value, "3") {
			want = append(want, value)
		}
	}
	s.holds(topic, want...)
	if n := s.Count(topic); n != len(want) {
		t.Errorf("the topic holds %d records, want %d", n, len(want))
	}
	s.Stop(r)
}
