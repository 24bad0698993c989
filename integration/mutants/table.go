package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// mutant is one deliberate mistake in the relay, and the test that has to notice it.
type mutant struct {
	name string
	// breaks says which rule is broken, loses what would come of it.
	breaks, loses string
	// pkg is the directory of the test's package, test its name, with subtests behind slashes.
	pkg, test string
	// says is a regular expression that the test's output must match: a test that fails for another reason has not
	// caught the mutant.
	says string
	// dies says that the test cannot but end in a panic, such as that of synctest where nothing can go on.
	dies  bool
	edits []edit
}

// edit replaces lines that occur exactly once in a file.
type edit struct {
	file     string // relative to the root of the repository
	old, new string // whole lines
}

// readTable reads all files of the table.
func readTable(root string) ([]mutant, error) {
	paths, err := filepath.Glob(filepath.Join(root, "integration", "mutants", "*.mutants"))
	if err != nil {
		return nil, fmt.Errorf("read the table: %w", err)
	}
	var all []mutant
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the table: %w", err)
		}
		part, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
		all = append(all, part...)
	}
	return all, nil
}

// parse reads mutants in the form
//
//	== NAME
//	breaks: RULE
//	loses: WHAT
//	caught by: PACKAGE TEST
//	says: REGULAR EXPRESSION
//	file: PATH
//	 line that stays
//	-line that goes
//	+line that comes
//
// with as many files and as many places in a file as it takes, each begun by "file:". A line "dies" is for a test that
// can only end in a panic.
func parse(text string) ([]mutant, error) {
	var all []mutant
	number := 0
	for line := range strings.Lines(text) {
		line, number = strings.TrimSuffix(line, "\n"), number+1
		if name, found := strings.CutPrefix(line, "== "); found {
			all = append(all, mutant{name: name})
			continue
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(all) == 0 || !all[len(all)-1].read(line) {
			return nil, fmt.Errorf("line %d is not understood: %s", number, line)
		}
	}
	for i := range all {
		if err := all[i].complete(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// read takes one line of a mutant and reports whether it makes sense.
func (m *mutant) read(line string) bool {
	if line[0] == ' ' || line[0] == '-' || line[0] == '+' {
		if len(m.edits) == 0 {
			return false
		}
		e := &m.edits[len(m.edits)-1]
		if line[0] != '+' {
			e.old += line[1:] + "\n"
		}
		if line[0] != '-' {
			e.new += line[1:] + "\n"
		}
		return true
	}
	key, value, found := strings.Cut(line, ": ")
	switch {
	case key == "breaks":
		m.breaks = value
	case key == "loses":
		m.loses = value
	case key == "caught by":
		m.pkg, m.test, found = strings.Cut(value, " ")
	case key == "says":
		m.says = value
	case key == "file":
		m.edits = append(m.edits, edit{file: value})
	case line == "dies":
		m.dies, found = true, true
	default:
		return false
	}
	return found
}

// complete checks that nothing is missing.
func (m *mutant) complete() error {
	if m.breaks == "" || m.loses == "" || m.pkg == "" || m.test == "" || m.says == "" || len(m.edits) == 0 {
		return fmt.Errorf("mutant %q is not complete", m.name)
	}
	for _, e := range m.edits {
		if e.old == "" || e.old == e.new {
			return fmt.Errorf("mutant %q changes nothing in %s", m.name, e.file)
		}
	}
	if _, err := regexp.Compile(m.says); err != nil {
		return fmt.Errorf("mutant %q: %w", m.name, err)
	}
	return nil
}

// choose returns the mutants whose name matches.
func choose(all []mutant, pattern string) ([]mutant, error) {
	name, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("flag -run: %w", err)
	}
	var chosen []mutant
	for _, m := range all {
		if name.MatchString(m.name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("flag -run: no mutant's name matches %q", pattern)
	}
	return chosen, nil
}
