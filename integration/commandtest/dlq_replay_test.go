package commandtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// dead waits until the slot has n dead letters that are dead, and returns their numbers, in order.
func dead(t *testing.T, env *testenv.Env, n int) (numbers []string) {
	t.Helper()
	testenv.Until(t, patience, func(context.Context) error {
		got := env.Text(`SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM public.cdc_relay_dead_letter WHERE slot = $1 AND state = 'dead'`, env.Slot)
		if numbers = strings.Fields(got); len(numbers) != n {
			return fmt.Errorf("dead letters %q, want %d", got, n)
		}
		return nil
	})
	return numbers
}

type replayed struct {
	Matched, Replayed int
	Published         *int
	RefusedAgain      []listed `json:"refused_again"`
}

// replay --wait tells what has become of the replay: published, refused again, or not known yet.
func TestDLQReplay(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	prepare(t, env)
	config := env.WriteConfig(nil)
	replay := func(code int, args ...string) testenv.Result {
		t.Helper()
		return dlq(t, env, code, append([]string{"replay", "--config", config}, args...)...)
	}
	r := env.StartRelay(testenv.RelayOptions{})
	r.WaitReady(patience)
	insert(t, env, "a")
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('no good', 'b', 'OrderPlaced', '{}'), ('no good', 'c', 'OrderPaid', '{}')`)
	insert(t, env, "d")
	wantKeys(t, env, topic, "a d")
	numbers := dead(t, env, 2)

	if got := replay(0, "--all", "--dry-run").Stdout; !strings.Contains(got, "would replay 2 dead letters:\n") || !strings.Contains(got, "invalid_topic") {
		t.Errorf("--dry-run prints\n%s", got)
	}
	// Nothing has changed, so both are refused again.
	again := env.Run("dlq", "replay", "--config", config, "--all", "--wait", "--timeout", "30s")
	refused(t, testenv.Result{Code: again.Code, Stderr: strings.TrimPrefix(again.Stderr, "waiting until the relay has published them\n")},
		4, "2 dead letters refused again", "cdc-relay dlq show")
	if !strings.Contains(again.Stdout, "replayed 2 dead letters\npublished 0, refused again 2\n") || strings.Count(again.Stdout, "invalid_topic") != 2 {
		t.Errorf("replay prints\n%s", again.Stdout)
	}
	got := jsonOf[replayed](t, replay(4, "--type", "OrderPaid", "--wait", "--timeout", "30s", "-o", "json"))
	if got.Matched != 1 || got.Replayed != 1 || got.Published == nil || *got.Published != 0 || len(got.RefusedAgain) != 1 || got.RefusedAgain[0].Key != "c" {
		t.Errorf("replay -o json: %+v", got)
	}

	if got := replay(0, numbers[0], "--to-topic", topic, "--wait", "--timeout", "30s").Stdout; got != "replayed 1 dead letter\npublished 1, refused again 0\n" {
		t.Errorf("replay --to-topic prints\n%s", got)
	}
	// What was waited for is on the topic by now.
	records := env.Consume(topic, 3, patience)
	if n, _ := records[2].Header("cdc-relay-replay"); string(records[2].Key) != "b" || n != "2" {
		t.Errorf("record with key %s and replay %s, want b and 2", records[2].Key, n)
	}
	twice := replay(0, numbers[0], "--wait")
	if !strings.HasPrefix(twice.Stderr, "left alone: "+numbers[0]+" is replayed since ") || !strings.HasSuffix(strings.TrimSpace(twice.Stdout), "still dead") {
		t.Errorf("a second replay prints\n%s%s", twice.Stdout, twice.Stderr)
	}

	missing := env.WriteConfig(testenv.Settings{"postgres.slot": "nowhere"})
	refused(t, env.Run("dlq", "replay", "--config", missing, "--all"), 78, "slot nowhere does not exist", "postgres.slot")

	// Without a relay the replay stands, and is published once there is one.
	stop(t, r)
	res := env.Run("dlq", "replay", "--config", config, "--all", "--to-topic", topic, "--wait", "--timeout", "1s")
	refused(t, testenv.Result{Code: res.Code, Stderr: strings.TrimPrefix(res.Stderr, "waiting until the relay has published them\n")},
		4, "not confirmed by the relay within 1s: none streams from slot "+env.Slot, "cdc-relay run")
	r = env.StartRelay(testenv.RelayOptions{})
	r.WaitReady(patience)
	wantKeys(t, env, topic, "a d b c")
	dead(t, env, 0)
	stop(t, r)
}

// The limit, the batches and the rate: the oldest go first, and all of them once.
func TestDLQReplayMany(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	prepare(t, env)
	config := env.WriteConfig(testenv.Settings{"breaker.share": 1})
	r := env.StartRelay(testenv.RelayOptions{Settings: testenv.Settings{"breaker.share": 1}})
	r.WaitReady(patience)
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) SELECT 'no good', lpad(n::text, 2, '0'), 'T', '{}' FROM generate_series(1, 50) n`)
	dead(t, env, 50)
	want := func(n int) string {
		var keys []string
		for i := range n {
			keys = append(keys, fmt.Sprintf("%02d", i+1))
		}
		return strings.Join(keys, " ")
	}
	if got := dlq(t, env, 0, "replay", "--config", config, "--all", "--max", "25", "--to-topic", topic, "--rate", "0").Stdout; !strings.HasPrefix(got, "replayed 25 dead letters\n") {
		t.Errorf("replay --max prints\n%s", got)
	}
	wantKeys(t, env, topic, want(25))
	dead(t, env, 25)
	if got := dlq(t, env, 0, "replay", "--config", config, "--all", "--to-topic", topic, "--wait").Stdout; got != "replayed 25 dead letters\npublished 25, refused again 0\n" {
		t.Errorf("replay --wait prints\n%s", got)
	}
	wantKeys(t, env, topic, want(50))
	stop(t, r)
}

// Without the table, or a right to it, the relay does not start: it could not keep a row that cannot be published. With
// on_poison: halt it needs neither.
func TestDeadLettersAtStart(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	prepare(t, env)
	env.Exec(`DROP TABLE public.cdc_relay_dead_letter`)
	refuses(t, env, nil, 78, "cdc_relay_dead_letter", "on_poison")
	refused(t, env.Run("validate", "--live", "--config", env.WriteConfig(nil)), 78, "cdc_relay_dead_letter", "on_poison")
	succeeds(t, env, []string{"postgres: ok"}, "validate", "--live", "--config", env.WriteConfig(testenv.Settings{"on_poison": "halt"}))
	r := env.StartRelay(testenv.RelayOptions{Settings: testenv.Settings{"on_poison": "halt"}})
	r.WaitReady(patience)
	stop(t, r)
}
