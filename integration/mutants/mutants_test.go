package main

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The code moves on; a mutant whose text is gone must be adapted with it, or it proves nothing.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := readTable(root)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d mutants: %v", len(all), err)
	}
	names := map[string]bool{}
	for _, m := range all {
		if _, err := m.apply(root); err != nil {
			t.Error(err)
		}
		if names[m.name] {
			t.Errorf("two mutants are called %q", m.name)
		}
		names[m.name] = true
		if !hasTest(t, root+"/"+m.pkg, m.test) {
			t.Errorf("mutant %q: %s has no test %s", m.name, m.pkg, m.test)
		}
	}
}

// hasTest reports whether a package declares a test, subtests left aside.
func hasTest(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(test, "/")
	declared := regexp.MustCompile(`(?m)^func ` + name + `\(`)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		text, err := os.ReadFile(dir + "/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if declared.Match(text) {
			return true
		}
	}
	return false
}

const example = `# The first.
== too high
breaks: a rule: the first
loses: all
caught by: internal/x TestX/low
says: too (high|low)
file: a.go
 one
-	two
+	too
file: b.go
-three

== deadlock
breaks: a rule
loses: all
caught by: internal/x TestX
says: deadlock
dies
file: a.go
-one
+two
`

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse(example)
	want := []mutant{{
		name: "too high", breaks: "a rule: the first", loses: "all", pkg: "internal/x", test: "TestX/low", says: "too (high|low)",
		edits: []edit{{"a.go", "one\n\ttwo\n", "one\n\ttoo\n"}, {"b.go", "three\n", ""}},
	}, {
		name: "deadlock", breaks: "a rule", loses: "all", pkg: "internal/x", test: "TestX", says: "deadlock", dies: true,
		edits: []edit{{"a.go", "one\n", "two\n"}},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, c := range []struct{ old, new, want string }{
		{"loses: all\n", "", "not complete"},
		{"file: a.go\n one", " one", "line 7 is not understood"},
		{"breaks:", "brakes:", "line 3 is not understood"},
		{"TestX/low", "", "not complete"},
		{"+\ttoo", "+\ttwo", "changes nothing in a.go"},
		{"(high", "high", "unexpected )"},
		{"== too high", "too high", "line 2 is not understood"},
	} {
		if _, err := parse(strings.Replace(example, c.old, c.new, 1)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q instead of %q: got %v, want %q", c.new, c.old, err, c.want)
		}
	}
}

func TestStale(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(root+"/a.go", []byte("\none\ntwo\none\n three\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, want string }{{"one\n", "occur 2 times"}, {"three\n", "occur 0 times"}, {"two\n", ""}} {
		m := mutant{name: "m", edits: []edit{{"a.go", c.old, "four\n"}}}
		changed, err := m.apply(root)
		if c.want == "" {
			if text := string(changed[root+"/a.go"]); err != nil || text != "\none\nfour\none\n three\n" {
				t.Errorf("got %q, %v", text, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "stale") {
			t.Errorf("%q: got %v, want %q", c.old, err, c.want)
		}
	}
}

// Only a test that fails by itself, and says what was expected, has caught a mutant.
func TestJudge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		r    result
		dies bool
		want string
	}{
		"caught":         {result{output: "    x_test.go:1: too high\n--- FAIL: TestX (0.00s)\nFAIL"}, false, ""},
		"survived":       {result{output: "--- PASS: TestX (0.00s)", passed: true}, false, "survived"},
		"another reason": {result{output: "    x_test.go:1: no server\n--- FAIL: TestX (0.00s)\nFAIL"}, false, "does not say"},
		"another test":   {result{output: "too high\n--- FAIL: TestXY (0.00s)\nFAIL"}, false, "did not fail by itself"},
		"died":           {result{output: "too high\n--- FAIL: TestX (0.00s)\npanic: nil map"}, false, "died"},
		"has to die":     {result{output: "panic: deadlock: too high"}, true, ""},
		"late":           {result{output: "too high\n--- FAIL: TestX (0.00s)", late: true}, false, "did not end"},
	} {
		m := mutant{test: "TestX", says: "too high", dies: c.dies}
		switch err := m.judge(c.r); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestPattern(t *testing.T) {
	t.Parallel()
	if got, want := pattern("TestX/a.b"), `^TestX$/^a\.b$`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all := []mutant{{name: "one"}, {name: "two"}, {name: "none"}}
	if got, err := choose(all, "one$|ne"); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, pattern := range []string{"three", "("} {
		if _, err := choose(all, pattern); err == nil {
			t.Errorf("%q: no error", pattern)
		}
	}
}
