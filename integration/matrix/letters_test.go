package matrix_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// most is what the topics of these rows take, and oversize is a row that they do not.
const most = 16 << 10

var oversize = strings.Repeat("x", most)

// narrow makes the topic one that takes no oversize row, and returns what changes that.
func (p *play) narrow() (widen func()) {
	p.t.Helper()
	p.CreateTopic("order", 1, "max.message.bytes", fmt.Sprint(most))
	return func() {
		p.t.Helper()
		p.Set(p.topic, "max.message.bytes", fmt.Sprint(4*most))
	}
}

// reasons are the reasons of dead letters, in the order of their rows.
func reasons(letters []scene.Letter) (all []string) {
	for _, l := range letters {
		all = append(all, l.Reason)
	}
	return all
}

// A row that is too large, one with a topic that can never be and one without any become dead letters. Their neighbours,
// which have the same key, are published in order, and the position passes all of them.
func rowIsDeadLettered(t *testing.T, st *stage) {
	p := newPlay(t, st)
	widen := p.narrow()
	r := p.start(testenv.RelayOptions{})
	p.Settled(p.insert("1", oversize, "2"))
	p.Settled(p.Insert("no/topic", "key", "never"))
	p.Settled(p.insert("3"))
	p.Exec(`INSERT INTO public.outbox (aggregateid, payload) VALUES ('key', 'nowhere')`)
	p.Settled(p.insert("4"))
	p.published("1", "2", "3", "4")
	letters := p.WaitLetters("dead", 3)
	if got := reasons(letters); !slices.Equal(got, []string{"too_large", "invalid_topic", "invalid_row"}) {
		t.Errorf("the dead letters have the reasons %q", got)
	}
	for i, want := range []string{oversize, "never", "nowhere"} {
		if l := letters[i]; string(l.Value) != want || string(l.Key) != "key" {
			t.Errorf("%.40s is kept as %.40q with key %q", want, l.Value, l.Key)
		}
	}
	if status, text, err := r.Get(t.Context(), "/readyz"); status != 200 {
		t.Errorf("/readyz answers %d (%v): %s", status, err, text)
	}

	// What happens next: a relay that is started anew passes them over, and one that can be published now is, behind the others.
	p.Stop(r)
	widen()
	r = p.start(testenv.RelayOptions{Settings: testenv.Settings{"resume.enabled": false}})
	p.Settled(p.insert("5"))
	p.published("1", "2", "3", "4", "5")
	p.Settled(p.Replay(letters[0].ID))
	p.published("1", "2", "3", "4", "5", oversize)
	p.WaitLetters("", 3)
	p.Stop(r)
}

// quick are three attempts in a row.
var quick = testenv.Settings{"max_attempts": 3, "retry.initial": "20ms", "retry.max": "100ms", "breaker.share": 1}

// down kills the broker until the end of the test or the call of up, and waits until the relay knows.
func (p *play) down(st *stage, r *testenv.Relay) (up func()) {
	p.t.Helper()
	broker := st.Kafka.Brokers()[0]
	if err := broker.Kill(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = broker.Start(context.WithoutCancel(p.t.Context())) }) // for the rows that follow
	scene.Reason(p.t, r, "kafka does not answer")
	return func() {
		p.t.Helper()
		if err := broker.Start(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	}
}

// While the broker is down rows become dead letters after max_attempts, where that is set, in order; the position passes
// them although no broker is there.
func deadLettersAfterMaxAttempts(t *testing.T, st *stage) {
	p := newPlay(t, st)
	p.CreateTopic("order", 1)
	r := p.start(testenv.RelayOptions{Settings: quick})
	p.Settled(p.insert("1"))
	up := p.down(st, r)
	within := p.insert("2", "3")
	letters := p.WaitLetters("dead", 2)
	for i, l := range letters {
		if string(l.Value) != fmt.Sprint(i+2) || l.Reason != "attempts" || l.Attempts != 3 || l.MayBePublished {
			t.Errorf("got %+v, want row %d after three attempts of which none arrived", l, i+2)
		}
	}
	p.Settled(within)

	// What happens next: the broker is back, and so is the traffic. The dead letters come when they are told to.
	up()
	r.WaitReady(patience)
	p.Settled(p.insert("4"))
	p.published("1", "4")
	p.Settled(p.Replay(letters[0].ID, letters[1].ID))
	p.published("1", "4", "2", "3")
	p.WaitLetters("replayed", 2)
	p.Stop(r)
}

// A broker that has recovered is not sent a dead letter by anybody, be the relay the same or another one; only a row that
// was on its way when the broker died may be there all the same, and then its dead letter says so.
func recoveredBroker(t *testing.T, st *stage) {
	p := newPlay(t, st)
	p.CreateTopic("order", 1)
	invoice := p.CreateTopic("invoice", 1)
	r := p.start(testenv.RelayOptions{Settings: quick})
	p.Settled(p.insert("1"))
	p.Settled(p.Insert("invoice", "key", "1"))
	if err := st.Kafka.Brokers()[0].Pause(); err != nil {
		t.Fatal(err)
	}
	within := p.Insert("invoice", "key", "on its way")
	p.until(r, "cdc_relay_in_flight_messages", is(1))
	testenv.Pass(t, 100*time.Millisecond) // It is written soon, and nothing tells when.
	up := p.down(st, r)
	p.insert("2", "3")
	letters := p.WaitLetters("dead", 2)
	p.Held(within) // Whether it arrived is known when the broker is back.

	// What happens next.
	up()
	p.Settled(within)
	p.Settled(p.insert("4"))
	p.published("1", "4")
	p.Stop(r)
	r = p.start(testenv.RelayOptions{Settings: testenv.Settings{"resume.enabled": false}})
	p.Settled(p.insert("5"))
	p.published("1", "4", "5")
	all := p.WaitLetters("dead", len(p.Letters()))
	for _, l := range all[:len(all)-len(letters)] {
		if string(l.Value) != "on its way" || !l.MayBePublished {
			t.Errorf("got %+v, want the row that was on its way", l)
		}
	}
	if n := p.Count(invoice); n+len(all) < 4 {
		t.Errorf("%d records and %d dead letters: the row that was on its way is lost", n, len(all))
	}
	p.Stop(r)
}

// However often a dead letter is replayed it is published once, with the message id of its row, also across a restart.
func replayIsIdempotent(t *testing.T, st *stage) {
	p := newPlay(t, st)
	widen := p.narrow()
	r := p.start(testenv.RelayOptions{})
	p.Settled(p.insert("1", oversize))
	letter := p.WaitLetters("dead", 1)[0]
	widen()
	for range 3 {
		p.Replay(letter.ID)
	}
	p.Settled(p.Replay(letter.ID, letter.ID))
	p.published("1", oversize)
	record := p.Consume(p.topic, 2, patience)[1]
	if id, _ := record.Header("id"); id != string(letter.MessageID) {
		t.Errorf("published with the message id %q, want %q", id, letter.MessageID)
	}
	if count, _ := record.Header("cdc-relay-replay"); count != "1" {
		t.Errorf("published as replay %q, want 1", count)
	}

	// What happens next: another relay does not publish it again, asked or not.
	p.Stop(r)
	p.Replay(letter.ID)
	r = p.start(testenv.RelayOptions{Settings: testenv.Settings{"resume.enabled": false}})
	p.Settled(p.Replay(letter.ID))
	p.Settled(p.insert("2"))
	p.published("1", oversize, "2")
	if l := p.WaitLetters("replayed", 1)[0]; l.Replays != 1 {
		t.Errorf("counted as %d replays, want 1", l.Replays)
	}
	p.Stop(r)
}

// A dead letter that cannot be written halts: its row is not dropped, nothing behind it is published, and the position
// stays before it, across a restart too.
func storeFailure(t *testing.T, st *stage) {
	p := newPlay(t, st)
	p.narrow()
	settings := testenv.Settings{"shutdown_timeout": "1s"}
	r := p.start(testenv.RelayOptions{Settings: settings})
	p.Settled(p.insert("1"))
	p.Exec(`CREATE FUNCTION public.no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$`)
	p.Exec(`CREATE TRIGGER no_space BEFORE INSERT ON public.cdc_relay_dead_letter EXECUTE FUNCTION public.no_space()`)
	within := p.insert("2", oversize, "3")
	halted := func() {
		t.Helper()
		scene.Reason(t, r, p.topic, "No space left on device")
		p.published("1", "2")
		p.Held(within)
		p.WaitLetters("", 0)
		p.Stop(r)
	}
	halted()
	r = p.StartRelay(testenv.RelayOptions{Settings: settings})
	halted()

	// What happens next: there is space again.
	p.Exec(`DROP TRIGGER no_space ON public.cdc_relay_dead_letter`)
	r = p.start(testenv.RelayOptions{Settings: settings})
	p.Settled(within)
	p.published("1", "2", "3")
	p.WaitLetters("dead", 1)
	p.Stop(r)
}
