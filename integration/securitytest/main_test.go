// Package securitytest runs the cdc-relay binary against servers that encrypt, authenticate and refuse, and looks for
// secrets in everything that it says.
package securitytest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	patience = 20 * time.Second
	// refusalLimit is how soon the relay has to say what is wrong.
	refusalLimit = 10 * time.Second

	password      = "alpha7/bravo7 charlie7@delta7:echo7%41&x=1"
	wrongPassword = "alpha7/wrong7 charlie7@delta7:echo7%41&x=1"
)

// secrets are the words of the passwords. Whatever is done to a password (escaped, cut in two by a parser, quoted), a
// word of it is still found.
var secrets = []string{"alpha7", "bravo7", "charlie7", "delta7", "echo7", "wrong7"}

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// keepsSecret fails the test when a word of a password is in the text.
func keepsSecret(t *testing.T, what, text string) {
	t.Helper()
	for _, word := range secrets {
		if strings.Contains(text, word) {
			t.Errorf("%s tells a password (%s):\n%s", what, word, text)
			return
		}
	}
}

// secretFile writes a password the way an editor does, with a newline.
func secretFile(t *testing.T, secret string) string {
	t.Helper()
	path := t.TempDir() + "/password"
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// relays runs the relay with the settings until one row has arrived. During, which may be nil, looks at it meanwhile.
func relays(t *testing.T, env *testenv.Env, settings testenv.Settings, during func(*testenv.Relay), args ...string) {
	t.Helper()
	topic := env.CreateTopic("order", 1)
	r := env.StartRelay(testenv.RelayOptions{Settings: settings, Args: append(args, "--log-level", "debug")})
	r.WaitReady(patience)
	insert(env)
	if got := env.Consume(topic, 1, patience)[0]; string(got.Key) != "o-1" || string(got.Value) != "{}" {
		t.Errorf("got key %q and value %q", got.Key, got.Value)
	}
	if during != nil {
		during(r)
	}
	tellsNothing(t, r)
	if code := r.Stop(patience); code != 0 {
		t.Errorf("relay exits with %d after SIGTERM, want 0", code)
	}
	keepsSecret(t, "output", r.Output())
}

func insert(env *testenv.Env) {
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'o-1', 'OrderPlaced', '{}')`)
}

// tellsNothing reads the HTTP server of a relay.
func tellsNothing(t *testing.T, r *testenv.Relay) {
	t.Helper()
	for _, path := range []string{"/metrics", "/readyz?verbose", "/livez"} {
		status, body, err := r.Get(t.Context(), path)
		if err != nil {
			t.Error(err)
		}
		if path == "/livez" && status != http.StatusOK {
			t.Errorf("/livez answers %d: %s", status, body)
		}
		keepsSecret(t, path, body)
	}
}

// exits runs a relay that has to give up with the code, one clear line that holds what says, and a next step that holds
// what next does.
func exits(t *testing.T, env *testenv.Env, settings testenv.Settings, code int, says, next string, args ...string) {
	t.Helper()
	r := env.StartRelay(testenv.RelayOptions{Settings: settings, Args: append(args, "--log-level", "debug")})
	got := r.Wait(refusalLimit)
	output := r.Output()
	keepsSecret(t, "output", output)
	if got != code {
		t.Errorf("exits with %d, want %d", got, code)
	}
	var lines []string
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "cdc-relay: ") || strings.HasPrefix(line, "Try: ") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], says) || !strings.Contains(lines[1], next) || next == "" {
		t.Errorf("ends with\n%swant a line with %q and a next step with %q", strings.Join(lines, ""), says, next)
	}
	if !strings.HasSuffix(output, strings.Join(lines, "")) {
		t.Errorf("what is wrong is not said at the end:\n%s", output)
	}
	t.Log(strings.Join(lines, ""))
}

// waits runs a relay that is not ready, in case the server changes its mind, and tells why in time.
func waits(t *testing.T, env *testenv.Env, settings testenv.Settings, says string) {
	t.Helper()
	r := env.StartRelay(testenv.RelayOptions{Settings: settings, Args: []string{"--log-level", "debug"}})
	testenv.Until(t, refusalLimit, func(ctx context.Context) error {
		status, body, err := r.Get(ctx, "/readyz")
		if err == nil && (status != http.StatusServiceUnavailable || !strings.Contains(body, says)) {
			err = fmt.Errorf("/readyz answers %d without %q: %s", status, says, body)
		}
		return err
	})
	r.WaitOutput(says, time.Second)
	tellsNothing(t, r)
	if code := r.Stop(refusalLimit); code != 0 {
		t.Errorf("relay exits with %d after SIGTERM, want 0", code)
	}
	keepsSecret(t, "output", r.Output())
	t.Log(r.Output())
}
