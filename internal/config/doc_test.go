package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files and docs/configuration.md")

// golden compares got with a file, or writes the file with -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; write it again with -update if that is meant:\n%s", path, diff)
	}
}

// TestReference keeps docs/configuration.md in step with the comments of config.go.
func TestReference(t *testing.T) {
	golden(t, "../../docs/configuration.md", reference(t))
}

const referenceHead = `# Configuration

<!-- Made from the comments of internal/config/config.go: go test ./internal/config -run TestReference -update -->

Settings are read in this order, each over the one before: defaults, the YAML file after ` + "`--config`" + `,
variables, flags. A list or a mapping replaces the one before as a whole.

- **File.** An unknown key, a key given twice and a value of the wrong kind are errors, all reported at once with
  file, line and the name that was likely meant. A list may also be written as one text with commas.
- **Variables.** The variable of a key is ` + "`CDC_RELAY_`" + ` and the key in upper case with ` + "`_`" + ` for each dot:
  ` + "`kafka.tls.ca_file`" + ` is ` + "`CDC_RELAY_KAFKA_TLS_CA_FILE`" + `. Text is taken as it stands, a mapping is written as in YAML
  (` + "`{name: value}`" + `). An empty variable counts as not set. A variable one or two letters off a known one is an error.
- **Others' variables.** ` + "`DATABASE_URL`, `KAFKA_BROKERS`, `KAFKA_BOOTSTRAP_SERVERS` and libpq's `PG*`" + ` only fill what none
  of the above has set.
- **Secrets** come from a file (` + "`postgres.password_file`, `kafka.sasl.password_file`" + `), from a variable, or for Postgres from
  libpq's password file (` + "`PGPASSFILE`" + `). They are never logged.
- **Sizes** are bytes, or a whole number of ` + "`KiB`, `MiB` or `GiB`" + `. **Durations** are written as in ` + "`10s`, `1m30s`" + `.

` + "`cdc-relay validate --config FILE`" + ` checks a configuration without any connection.
`

// reference makes the page: a table for each section, with the comments as they stand.
func reference(t *testing.T) string {
	t.Helper()
	comments := fieldComments(t)
	c := Default()
	var b strings.Builder
	b.WriteString(referenceHead)
	section := "-"
	for _, f := range fields(&c) {
		// The section is the key without its last part; its words are those of its struct's comment.
		dot := strings.LastIndexByte(f.key, '.')
		if s := f.key[:max(dot, 0)]; s != section {
			section = s
			if s != "" {
				fmt.Fprintf(&b, "\n## %s\n", s)
				if text := comments[s]; text != "" {
					fmt.Fprintf(&b, "\n%s\n", text)
				}
			} else {
				b.WriteString("\n## Top level\n")
			}
			b.WriteString("\n| key | default | meaning |\n|---|---|---|\n")
		}
		text := comments[f.key]
		if text == "" {
			t.Errorf("%s has no comment in config.go", f.key)
		}
		value := "–"
		if !f.value.IsZero() {
			value = "`" + f.text() + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.key[dot+1:], value, strings.ReplaceAll(text, "|", "\\|"))
	}
	return b.String()
}

// fieldComments reads config.go and returns the comment of each key, on one line.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := doc.NewFromFiles(fset, []*ast.File{file}, "config", doc.AllDecls)
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*doc.Type{}
	for _, typ := range pkg.Types {
		structs[typ.Name] = typ
	}
	comments := map[string]string{}
	var walk func(prefix, name string)
	walk = func(prefix, name string) {
		spec := structs[name].Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType)
		for _, f := range spec.Fields.List {
			if f.Tag == nil {
				continue
			}
			key := prefix + reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("yaml")
			comments[key] = strings.Join(strings.Fields(f.Doc.Text()), " ")
			if ident, ok := f.Type.(*ast.Ident); ok && structs[ident.Name] != nil {
				if comments[key] == "" {
					comments[key] = strings.Join(strings.Fields(structs[ident.Name].Doc), " ")
				}
				walk(key+".", ident.Name)
			}
		}
	}
	walk("", "Config")
	return comments
}
