package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Source is where settings come from, besides the defaults.
type Source struct {
	// File is the path of the YAML file; empty for none.
	File string
	// Environ is the environment, as os.Environ gives it.
	Environ []string
	// Flags are those of the command line that set a key.
	Flags []Flag
}

// Flag is a command-line flag that sets a key.
type Flag struct {
	Name string // with its dashes
	Key  string
	Text string
}

// Scope says how much a command needs, and so what has to be set and right.
type Scope int

const (
	// Offline: no server has to be named.
	Offline Scope = iota
	// Database: the command talks to Postgres.
	Database
	// Everything: the command talks to Postgres and Kafka.
	Everything
)

// Load reads the sources, each over the one before: defaults, file, variables, flags. Then
// DATABASE_URL, KAFKA_BROKERS and KAFKA_BOOTSTRAP_SERVERS fill what none of these has set. It reads
// the files of secrets and checks what the scope needs. The error is an *Error with every problem
// found.
func Load(src Source, scope Scope) (*Config, error) {
	c := Default()
	l := &loader{config: &c, fields: fields(&c)}
	c.origins = map[string]string{}
	if err := l.readFile(src.File); err != nil {
		return nil, err
	}
	env := environment(src.Environ)
	l.readEnviron(env)
	l.readFlags(src.Flags)
	l.fallBack(env)

	l.problems = append(l.problems, c.check(scope)...)
	if len(l.problems) > 0 {
		return nil, &Error{Problems: l.problems}
	}
	return &c, nil
}

// environment turns os.Environ's form into a map. An empty variable counts as not set, as in
// libpq: compose files and charts pass variables on that way.
func environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); value != "" {
			env[name] = value
		}
	}
	return env
}

// loader fills a configuration and collects what is wrong with the sources.
type loader struct {
	config   *Config
	fields   []field
	problems []Problem
}

func (l *loader) problem(where, key, what, next string) {
	l.problems = append(l.problems, Problem{Where: where, Key: key, What: what, Next: next})
}

// set takes the outcome of setting a field and notes where its value comes from.
func (l *loader) set(f field, where string, err error) {
	if err != nil {
		l.problem(where, f.key, err.Error(), "correct the value; see docs/configuration.md")
		return
	}
	l.config.origins[f.key] = where
}

// readFile sets the keys of the YAML file. Without the file all that is said about the rest would
// mislead, so that one is returned and not collected.
func (l *loader) readFile(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		// The path is named by Where already.
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err
		}
		return &Error{Problems: []Problem{{
			Where: path, What: fmt.Sprintf("read configuration file: %v", err), Next: "correct the path after --config",
		}}}
	}
	l.readYAML(path, text)
	return nil
}

func (l *loader) readYAML(path string, text []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return // an empty file sets nothing
	case err != nil:
		l.problem(path, "", strings.TrimPrefix(err.Error(), "yaml: "), "correct the YAML")
		return
	}
	if decoder.Decode(new(yaml.Node)) == nil {
		l.problem(path, "", "more than one YAML document", "keep the first and remove what follows ---")
	}
	l.readSection(path, "", doc.Content[0])
}

// sectionOrFalse is the section that may be turned off in one word.
const sectionOrFalse = "kafka.create_topics"

// readSection sets the keys below prefix from a mapping of the YAML file.
func (l *loader) readSection(path, prefix string, node *yaml.Node) {
	at := func(n *yaml.Node) string { return fmt.Sprintf("%s:%d", path, n.Line) }
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	section := strings.TrimSuffix(prefix, ".")
	switch {
	case node.Tag == "!!null", section == sectionOrFalse && node.Value == "false":
		return
	case node.Kind != yaml.MappingNode:
		what := "want a mapping of keys"
		if section == sectionOrFalse {
			what = "want false or a mapping of keys"
		}
		l.problem(at(node), section, what, "write its keys indented below it; see docs/configuration.md")
		return
	}
	seen := map[string]int{}
	for i := 0; i < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		key := prefix + name.Value
		if line, ok := seen[key]; ok {
			l.problem(at(name), key, fmt.Sprintf("given twice, first on line %d", line), "remove one of the two")
			continue
		}
		seen[key] = name.Line
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		switch f, kind := l.find(key); {
		case kind == isSection:
			l.readSection(path, key+".", value)
		case kind == isUnknown:
			l.problem(at(name), key, "unknown key"+l.suggest(key), "correct or remove it; docs/configuration.md lists the keys")
		case value.Tag != "!!null":
			l.set(f, at(value), f.setNode(value))
		}
	}
}

type keyKind int

const (
	isUnknown keyKind = iota
	isSection
	isField
)

// find says what a key names.
func (l *loader) find(key string) (field, keyKind) {
	for _, f := range l.fields {
		if f.key == key {
			return f, isField
		}
		if strings.HasPrefix(f.key, key+".") {
			return field{}, isSection
		}
	}
	return field{}, isUnknown
}

// suggest says which key was likely meant.
func (l *loader) suggest(key string) string {
	var known []string
	for _, f := range l.fields {
		known = append(known, f.key)
		for section := f.key; strings.Contains(section, "."); {
			section = section[:strings.LastIndexByte(section, '.')]
			known = append(known, section)
		}
	}
	if near := Nearest(key, known); near != "" {
		return ", did you mean " + near + "?"
	}
	return ""
}

// readEnviron sets the keys whose variables are set. A variable of our prefix that is one or two
// letters off is a mistake; any other is left alone, since Kubernetes sets variables such as
// CDC_RELAY_SERVICE_HOST beside a service called cdc-relay, and deployments keep their own
// (CDC_RELAY_IMAGE) in the same files.
func (l *loader) readEnviron(env map[string]string) {
	var known []string
	for _, f := range l.fields {
		known = append(known, f.env())
		if value, ok := env[f.env()]; ok {
			l.set(f, f.env(), f.setText(value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !strings.HasPrefix(name, EnvPrefix) || slices.Contains(known, name) {
			continue
		}
		if near, off := nearest(name, known); off <= 2 {
			l.problem(name, "", "unknown variable, did you mean "+near+"?", "correct or unset it; docs/configuration.md lists the keys")
		}
	}
}

func (l *loader) readFlags(flags []Flag) {
	for _, flag := range flags {
		f, _ := l.find(flag.Key)
		l.set(f, flag.Name, f.setText(flag.Text))
	}
}

// fallBack fills what is still empty from the variables that other tools use.
func (l *loader) fallBack(env map[string]string) {
	for _, fill := range []struct{ key, name string }{
		{"postgres.url", "DATABASE_URL"},
		{"kafka.brokers", "KAFKA_BROKERS"},
		{"kafka.brokers", "KAFKA_BOOTSTRAP_SERVERS"},
	} {
		f, _ := l.find(fill.key)
		if value := env[fill.name]; value != "" && f.value.IsZero() {
			l.set(f, fill.name, f.setText(value))
		}
	}
	// pgx reads these itself for whatever the connection string leaves out.
	for _, name := range []string{"PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE", "PGPORT", "PGUSER"} {
		if env[name] != "" && l.config.Postgres.URL == "" {
			l.config.origins["postgres.url"] = name
		}
	}
}

// NamesServer reports whether anything says which Postgres server is meant.
func (c *Config) NamesServer() bool {
	return c.Postgres.URL != "" || c.origins["postgres.url"] != ""
}
