package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// apply returns the changed text of each file that the mutant touches.
func (m *mutant) apply(root string) (map[string][]byte, error) {
	changed := map[string][]byte{}
	for _, e := range m.edits {
		path := filepath.Join(root, filepath.FromSlash(e.file))
		text, seen := changed[path]
		if !seen {
			var err error
			if text, err = os.ReadFile(path); err != nil {
				return nil, fmt.Errorf("mutant %q is stale: %w", m.name, err)
			}
		}
		// With the line's end before them they are whole lines. No edit is about the first line of a file.
		old := []byte("\n" + e.old)
		if n := bytes.Count(text, old); n != 1 {
			return nil, fmt.Errorf("mutant %q is stale: these lines occur %d times in %s, want once: adapt the table to the code:\n%s",
				m.name, n, e.file, e.old)
		}
		changed[path] = bytes.Replace(text, old, []byte("\n"+e.new), 1)
	}
	return changed, nil
}

// overlay writes the changed files below dir and returns the file that leads the go command to them.
func (m *mutant) overlay(root, dir string) (string, error) {
	changed, err := m.apply(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, text := range changed {
		at := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(at, text, 0o600); err != nil {
			return "", fmt.Errorf("write mutant %q: %w", m.name, err)
		}
		replace[path] = at
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("write mutant %q: %w", m.name, err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write mutant %q: %w", m.name, err)
	}
	return path, nil
}
