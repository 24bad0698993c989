package commandtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// consumerDB is a database with the inbox and nothing else of ours.
type consumerDB struct {
	*testenv.Env

	t      *testing.T
	config []string
}

func newConsumerDB(t *testing.T) *consumerDB {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka())
	d := &consumerDB{env, t, []string{"--config", env.WriteConfig(nil)}}
	refused(t, env.Run(d.with("inbox", "stats")...), 78, `relation "public.cdc_relay_inbox" does not exist`, "migrate up --only cdc_relay_inbox")
	succeeds(t, env, []string{"applied 005_cdc_relay_inbox\n"}, d.with("migrate", "up", "--only", "cdc_relay_inbox")...)
	return d
}

func (d *consumerDB) with(args ...string) []string { return append(args, d.config...) }

// run runs a command that has to end with the code, and show no payload unless it is asked to.
func (d *consumerDB) run(code int, args ...string) testenv.Result {
	d.t.Helper()
	res := d.Run(d.with(args...)...)
	if res.Code != code {
		d.t.Errorf("%v exits with %d, want %d\n%s%s", args, res.Code, code, res.Stdout, res.Stderr)
	}
	if !strings.Contains(strings.Join(args, " "), "--show-payload") && strings.Contains(res.Stdout+res.Stderr, "secret") {
		d.t.Errorf("%v shows a payload:\n%s%s", args, res.Stdout, res.Stderr)
	}
	return res
}

// prints wants every text in what a command prints, on either stream.
func (d *consumerDB) prints(code int, want []string, args ...string) {
	d.t.Helper()
	res := d.run(code, args...)
	for _, w := range want {
		if !strings.Contains(res.Stdout+res.Stderr, w) {
			d.t.Errorf("%v prints\n%s%s, want %q", args, res.Stdout, res.Stderr, w)
		}
	}
}

// bury settles a message as a dead letter of the consumer and returns the letter's number.
func (d *consumerDB) bury(consumer, id, key string) string {
	d.t.Helper()
	d.Exec(`SELECT public.cdc_inbox_dead_letter($1, $2, 'orders', 3, 7, convert_to($3, 'UTF8'), 'secret', ARRAY['id', 'token']::bytea[],
		ARRAY['x', 'header-secret']::bytea[], 'permanent', 'no such order', true)`, consumer, id, key)
	return d.Text(`SELECT id FROM public.cdc_relay_inbox_letter WHERE consumer = $1 AND message_id = $2`, consumer, id)
}

// park puts a message behind the dead ones of its key, or with a version at a gap.
func (d *consumerDB) park(consumer, id, key string, version int) {
	d.t.Helper()
	d.Exec(`INSERT INTO public.cdc_relay_inbox (message_id, consumer, outcome) VALUES ($1, $2, 'parked')`, id, consumer)
	d.Exec(`INSERT INTO public.cdc_relay_inbox_letter (consumer, message_id, state, lane, blocks, topic, record_key, reason, version)
		VALUES ($2, $1, 'parked', public.cdc_inbox_lane('orders', convert_to($3, 'UTF8')), $4 = 0, 'orders', convert_to($3, 'UTF8'),
			CASE WHEN $4 = 0 THEN 'behind' ELSE 'gap' END, nullif($4::int, 0))`, id, consumer, key, version)
}

func (d *consumerDB) state(id string) string {
	d.t.Helper()
	return d.Text(`SELECT state FROM public.cdc_relay_inbox_letter WHERE message_id = $1`, id)
}

type inboxLetter struct {
	ID                           int
	Consumer, State, Reason, Key string
	Partition, Offset            int
	Blocks                       bool
	Value                        *string
}

// The dead letters of consumers are looked at, given up and purged as those of the relay are, in a database that has no
// table of the relay.
func TestInboxDeadLetters(t *testing.T) {
	t.Parallel()
	d := newConsumerDB(t)
	dlq := func(args ...string) []string { return append([]string{"dlq", "--source", "inbox"}, args...) }
	d.prints(0, []string{"the inbox has no dead letter that matches\n"}, dlq("list", "--exit-code")...)
	first := d.bury("billing", "m-1", "a\x1b[2J")
	second := d.bury("shipping", "m-1", "b")
	d.park("billing", "m-2", "a\x1b[2J", 0)

	d.prints(3, []string{"CONSUMER", "billing", "shipping", `a\x1b[2J`, "no such order", "there are 2 dead letters"}, dlq("list", "--exit-code")...)
	got := jsonOf[[]inboxLetter](t, d.run(0, dlq("list", "--consumer", "billing", "--state", "all", "-o", "json")...))
	if len(got) != 2 || got[0].State != "dead" || got[0].Partition != 3 || got[0].Offset != 7 || !got[0].Blocks || got[0].Value != nil || got[1].Reason != "behind" {
		t.Errorf("list -o json: %+v", got)
	}
	for args, want := range map[string]string{
		"--reason behind --state parked": "m-2", "--id m-1 --consumer shipping": "m-1", "--aggregate b": "m-1", "--topic none": "", "--until 1h": "",
	} {
		var ids []string
		for _, l := range jsonOf[[]struct {
			ID string `json:"message_id"`
		}](t, d.run(0, dlq(append([]string{"list", "-o", "json"}, strings.Fields(args)...)...)...)) {
			ids = append(ids, l.ID)
		}
		if strings.Join(ids, " ") != want {
			t.Errorf("list %s: %v, want %s", args, ids, want)
		}
	}
	d.prints(0, []string{"blocks            yes", "partition         3 at offset 7", "headers           id, token\n", "value             6 bytes"}, dlq("show", first)...)
	d.prints(0, []string{"  token: header-secret\n", "\nvalue\nsecret\n"}, dlq("show", first, "--show-payload")...)
	d.prints(3, []string{"consumer shipping has no dead letter " + first}, dlq("show", first, "--consumer", "shipping")...)
	d.prints(3, []string{"billing", "permanent", "behind"}, dlq("stats", "--exit-code")...)
	d.prints(0, []string{"consumer nobody has no dead letter that matches", "consumer billing has 1 dead letter (--consumer)"}, dlq("list", "--consumer", "nobody")...)

	d.prints(0, []string{"would discard 1 dead letter"}, dlq("discard", second, "--dry-run")...)
	d.prints(0, []string{"discarded 1 dead letter\n"}, dlq("discard", second)...)
	d.prints(0, []string{"left alone: " + second + " is discarded since"}, dlq("discard", second)...)
	d.prints(0, []string{"purged 1 dead letter\n"}, dlq("purge", "--all")...)
	if n := d.Text(`SELECT count(*) FROM public.cdc_relay_inbox_letter`); n != "2" {
		t.Errorf("%s letters are left, want 2", n)
	}
	d.prints(0, []string{`"replayed": 0`}, dlq("replay", "--all", "--dry-run", "-o", "json")...)
	d.prints(0, []string{"made 1 dead letter due\n", "no runner of consumer billing has ever been seen; they stay due until one runs"}, dlq("replay", first)...)
	d.prints(0, []string{"left alone: " + first + " is due since"}, dlq("replay", first)...)
	if d.state("m-1") != "due" {
		t.Error("the letter is not due")
	}
	d.prints(1, []string{"holds messages that wait"}, "migrate", "down", "--only", "cdc_relay_inbox")
	d.prints(0, []string{"took back 005_cdc_relay_inbox"}, "migrate", "down", "--only", "cdc_relay_inbox", "--force")
}

// Replayed letters are handled by the consumer's runner; --wait says how that ended.
func TestInboxReplay(t *testing.T) {
	t.Parallel()
	d := newConsumerDB(t)
	for _, id := range []string{"m-0", "m-1", "m-2"} {
		d.bury("billing", id, id)
	}
	bad := d.bury("billing", "bad", "k")
	d.park("billing", "later", "k", 0)
	d.prints(4, []string{"1 still due after 1s", "made 1 dead letter due"}, "dlq", "--source", "inbox", "replay", "--id", "m-0", "--wait", "--timeout", "1s")

	var mended atomic.Bool
	runConsumer(t, d.URL, "billing", func(m *inbox.Message) error {
		if m.ID == "bad" && !mended.Load() {
			return inbox.Permanent(errors.New("still no such order"))
		}
		return nil
	})
	d.prints(4, []string{"processed 2, dead again 1", "1 message dead again", "still no such order"},
		"dlq", "--source", "inbox", "replay", "--all", "--wait", "--timeout", "40s")
	if got := d.state("later"); got != "parked" {
		t.Errorf("what waits behind is %s", got)
	}
	mended.Store(true)
	d.prints(0, []string{"replayed 1 key; the consumer's runner handles what waits"}, "parked", "retry", "--consumer", "billing", "--key", "k")
	testenv.Until(t, patience, func(context.Context) error {
		if got := d.state("bad") + " " + d.state("later"); got != "processed processed" {
			return fmt.Errorf("the letters are %s", got)
		}
		return nil
	})
	d.prints(0, []string{"left alone: " + bad + " is processed"}, "dlq", "--source", "inbox", "replay", bad, "--wait")
	stats := jsonOf[[]struct {
		Consumer                     string
		Processed, Dead, Due, Parked int
		Missing                      bool `json:"runner_missing"`
	}](t, d.run(0, "inbox", "stats", "-o", "json"))
	if len(stats) != 1 || stats[0].Processed != 5 || stats[0].Dead+stats[0].Due+stats[0].Parked != 0 || stats[0].Missing {
		t.Errorf("stats -o json: %+v", stats)
	}
}
