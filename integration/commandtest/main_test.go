// Package commandtest runs the cdc-relay binary against real servers that lack something, come late, or are changed
// while it runs, and looks at what it says and how it ends.
package commandtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) {
	testenv.Parallel(6) // The tests wait more than they work.
	os.Exit(testenv.Main(m))
}

const (
	patience = 40 * time.Second
	// refusalLimit is how soon a command has to say what is wrong.
	refusalLimit = 20 * time.Second
)

// prepare runs init.
func prepare(t *testing.T, env *testenv.Env) {
	t.Helper()
	if res := env.Run("init", "--config", env.WriteConfig(nil)); res.Code != 0 {
		t.Fatalf("init exits with %d: %s", res.Code, res.Stderr)
	}
}

// insert writes a row of type order and returns the end of the log after it.
func insert(t *testing.T, env *testenv.Env, key string) (lsn string) {
	t.Helper()
	conn := env.Conn()
	if _, err := conn.Exec(t.Context(), `INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
		VALUES ('order', $1, 'OrderPlaced', '{}')`, key); err != nil {
		t.Fatal(err)
	}
	return env.Text(`SELECT pg_current_wal_insert_lsn()`)
}

// slot reads a column of the slot as text, "" for NULL and when there is no slot.
func slot(t *testing.T, env *testenv.Env, column string) string {
	t.Helper()
	return env.Text(`SELECT `+column+` FROM pg_replication_slots WHERE slot_name = $1`, env.Slot)
}

// notPast fails the test when the slot's confirmed position has reached lsn.
func notPast(t *testing.T, env *testenv.Env, lsn string) {
	t.Helper()
	if env.Text(`SELECT confirmed_flush_lsn < $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, env.Slot, lsn) != "true" {
		t.Errorf("position %s is confirmed, which has reached %s", slot(t, env, "confirmed_flush_lsn"), lsn)
	}
}

// keys waits for n records and returns their keys in one string, in order.
func keys(env *testenv.Env, topic string, n int) string {
	var got []string
	for _, rec := range env.Consume(topic, n, patience) {
		got = append(got, string(rec.Key))
	}
	return strings.Join(got, " ")
}

func wantKeys(t *testing.T, env *testenv.Env, topic, want string) {
	t.Helper()
	if got := keys(env, topic, len(strings.Fields(want))); got != want {
		t.Errorf("keys %q on %s, want %q", got, topic, want)
	}
}

// refuses runs the relay, which has to give up with the code, one clear line that holds says and a next step that
// holds next.
func refuses(t *testing.T, env *testenv.Env, settings testenv.Settings, code int, says, next string, args ...string) {
	t.Helper()
	r := env.StartRelay(testenv.RelayOptions{Settings: settings, Args: args})
	refused(t, testenv.Result{Code: r.Wait(refusalLimit), Stderr: r.Output()}, code, says, next)
}

// refused looks at a command that has given up.
func refused(t *testing.T, got testenv.Result, code int, says, next string) {
	t.Helper()
	if got.Code != code {
		t.Errorf("exits with %d, want %d", got.Code, code)
	}
	_, message, found := strings.Cut("\n"+got.Stderr, "\ncdc-relay: ")
	what, step, _ := strings.Cut(message, "\nTry: ")
	if !found || !strings.Contains(what, says) || !strings.Contains(step, next) || strings.TrimSpace(step) == "" {
		t.Errorf("says\n%s\nwant a line with %q and a next step with %q", got.Stderr, says, next)
	}
	if strings.Contains(got.Stderr, "goroutine ") || strings.Count(message, "\n") > 2 {
		t.Errorf("more than a message and a next step:\n%s", got.Stderr)
	}
	t.Log(message)
}

// notReady waits until /readyz answers 503 with every text and returns the answer.
func notReady(t *testing.T, r *testenv.Relay, limit time.Duration, says ...string) (body string) {
	t.Helper()
	return answers(t, r, limit, 503, says...)
}

// standby waits until /readyz answers 200 as standby with every text.
func standby(t *testing.T, r *testenv.Relay, says ...string) {
	t.Helper()
	answers(t, r, patience, 200, append(says, "ok: standby")...)
}

// draining waits until the relay stops and has something left to wait for.
func draining(t *testing.T, r *testenv.Relay) {
	t.Helper()
	answers(t, r, patience, 503, "role: stopping")
}

// answers waits for the status of /readyz with every text and returns the answer.
func answers(t *testing.T, r *testenv.Relay, limit time.Duration, want int, says ...string) (body string) {
	t.Helper()
	testenv.Until(t, limit, func(ctx context.Context) error {
		select {
		case <-r.Done():
			t.Fatal("the relay has ended")
		default:
		}
		status, text, err := r.Get(ctx, "/readyz?verbose")
		if err != nil {
			return err
		}
		for _, s := range says {
			if status != want || !strings.Contains(text, s) {
				return fmt.Errorf("/readyz answers %d %q, want %d with %q", status, text, want, s)
			}
		}
		body = text
		return nil
	})
	return body
}

// pass lets the time pass in which nothing may happen.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	until := time.Now().Add(d)
	testenv.Until(t, d+patience, func(context.Context) error {
		if time.Now().Before(until) {
			return errors.New("the time is not over")
		}
		return nil
	})
}

// stop ends a relay cleanly.
func stop(t *testing.T, r *testenv.Relay) {
	t.Helper()
	began := time.Now()
	defer func() {
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("takes %v to stop", took)
		}
	}()
	if code := r.Stop(patience); code != 0 {
		t.Errorf("exits with %d after SIGTERM, want 0", code)
	}
}
