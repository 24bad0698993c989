package regress_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	root = "../.."
	// mayLack is how many failures may have a reason in place of a test.
	mayLack = 5
)

// The record names tests that exist, on real servers for what can lose events.
func TestRecordNamesTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "bug-track-record.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:integration|internal|inbox)/\\S+) (Test\\w+)`")
	rows, without := 0, 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		if len(cells) != 4 || !strings.Contains(cells[2], "](https://") {
			continue
		}
		rows++
		severe, onServers := strings.Contains(cells[0], "●"), false
		tests := named.FindAllStringSubmatch(cells[3], -1)
		if len(tests) == 0 {
			without++
		}
		for _, test := range tests {
			if dir, name := test[1], test[2]; !hasTest(t, dir, name) {
				t.Errorf("there is no %s in %s", name, dir)
			}
			onServers = onServers || strings.HasPrefix(test[1], "integration/")
		}
		if severe && !onServers {
			t.Errorf("not tried on real servers: %s", cells[1])
		}
	}
	if rows == 0 || without > mayLack {
		t.Errorf("%d of %d failures have no test, at most %d may", without, rows, mayLack)
	}
}

// hasTest says whether a test file of the directory declares the function.
func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				return true
			}
		}
	}
	return false
}
