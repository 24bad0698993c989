package pipeline_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const patience = 20 * time.Second

// start runs a relay that creates what is missing, and waits until it streams.
func start(t *testing.T, env *testenv.Env, settings testenv.Settings) *testenv.Relay {
	t.Helper()
	r := env.StartRelay(testenv.RelayOptions{Settings: settings, Args: []string{"--init"}})
	r.WaitReady(patience)
	return r
}

// stop ends a relay cleanly.
func stop(t *testing.T, r *testenv.Relay) {
	t.Helper()
	if code := r.Stop(patience); code != 0 {
		t.Errorf("relay exits with %d after SIGTERM, want 0", code)
	}
}

// One row that an ordinary transaction inserts arrives on its topic, under its key.
func TestFirstLight(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 2)
	r := start(t, env, nil)
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'o-1', 'OrderPlaced', '{"n": 1}')`)
	got := env.Consume(topic, 1, patience)[0]
	if string(got.Key) != "o-1" || string(got.Value) != `{"n": 1}` {
		t.Errorf("got key %q and value %q", got.Key, got.Value)
	}
	for name, want := range map[string]string{"type": "OrderPlaced", "content-type": "application/json"} {
		if have, _ := got.Header(name); have != want {
			t.Errorf("header %s is %q, want %q", name, have, want)
		}
	}
	if position, _ := got.Header("cdc-relay-position"); !strings.HasPrefix(position, "1.") {
		t.Errorf("position header is %q", position)
	}
	stop(t, r)
}
