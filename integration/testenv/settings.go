package testenv

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/cdc-relay/cdc-relay/integration/process"
)

// Settings are keys of the relay's configuration, written with dots, such as "kafka.compression".
type Settings map[string]any

// Settings returns those that lead the relay to this test's servers, with more put over them. A nil value removes a
// key. Topics get the test's prefix.
func (e *Env) Settings(more Settings) Settings {
	s := Settings{
		"postgres.url":         e.URL,
		"postgres.slot":        e.Slot,
		"postgres.publication": e.Publication,
		"kafka.brokers":        e.Brokers,
		"routing.topic":        e.Prefix + "{aggregatetype}",
	}
	maps.Copy(s, more)
	return s
}

// WriteConfig writes [Env.Settings] to a file of its own and returns its path.
func (e *Env) WriteConfig(more Settings) string {
	e.t.Helper()
	text, err := json.MarshalIndent(nest(e.Settings(more)), "", "  ") // JSON is YAML, too.
	if err != nil {
		e.t.Fatal(err)
	}
	path := filepath.Join(e.t.TempDir(), "cdc-relay.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		e.t.Fatal(err)
	}
	return path
}

// nest turns a.b: 1 into a: {b: 1}.
func nest(flat Settings) map[string]any {
	root := map[string]any{}
	for key, value := range flat {
		if value == nil {
			continue
		}
		at, parts := root, strings.Split(key, ".")
		for _, part := range parts[:len(parts)-1] {
			next, ok := at[part].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
		at[parts[len(parts)-1]] = value
	}
	return root
}

// environment is what the relay may see of ours: none of the variables that would configure it.
func environment(extra []string) []string {
	// Races are reported at once; the detector would sleep for a second before each exit.
	env := append(process.Environ(), "GORACE=halt_on_error=1 atexit_sleep_ms=0", "GOTRACEBACK=all")
	return append(env, extra...)
}
