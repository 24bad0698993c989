package migrations

import (
	"bytes"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cdc-relay/cdc-relay/internal/golden"
)

// A migration that was released must not change: databases have its checksum.
func TestChecksums(t *testing.T) {
	t.Parallel()
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, m := range all {
		b.WriteString(m.ID() + " " + m.Checksum() + "\n")
	}
	golden.Compare(t, "checksums.txt", b.Bytes())
}

func TestPrint(t *testing.T) {
	t.Parallel()
	for _, f := range Formats() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			if err := Print(&b, f, Options{}); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, string(f)+".txt", b.Bytes())
		})
	}
	if err := Print(new(bytes.Buffer), "atlas", Options{}); err == nil || !strings.Contains(err.Error(), "psql flyway liquibase ef") {
		t.Errorf("Print with an unknown format = %v, want the known ones named", err)
	}
}

func TestFilesChosen(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		"V002__cdc_relay_slots.sql U002__cdc_relay_slots.sql":   {Skip: []string{"outbox", "publication", "cdc_relay_dead_letter", "cdc_relay_inbox"}},
		"V005__cdc_relay_inbox.sql U005__cdc_relay_inbox.sql":   {Only: []string{"cdc_relay_inbox"}},
		"V001__cdc_relay_outbox.sql U001__cdc_relay_outbox.sql": {Only: []string{"outbox", "publication"}, Skip: []string{"publication"}},
	} {
		files, err := Files(Flyway, o)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range files {
			names = append(names, f.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%+v: files %s, want %s", o, got, want)
		}
	}
}

// Tools wrap the scripts in their own transactions, and in comments or strings.
func TestScriptsAreEmbeddable(t *testing.T) {
	t.Parallel()
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		for _, sql := range []string{m.Up, m.Down} {
			for _, bad := range []string{"\nBEGIN;", "\nCOMMIT", "*/", "${", "\\", "\r", "\t"} {
				if strings.Contains(sql, bad) {
					t.Errorf("%s contains %q", m.ID(), bad)
				}
			}
			if !strings.HasSuffix(sql, ";\n") {
				t.Errorf("%s does not end in a semicolon and a line feed", m.ID())
			}
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const up = createsPrefix + "table t\nCREATE TABLE t ();\n"
	for name, c := range map[string]struct {
		fs   fstest.MapFS
		want string
	}{
		"no down":  {fstest.MapFS{"001_a.up.sql": file(up)}, "001_a.down.sql"},
		"gap":      {fstest.MapFS{"002_a.up.sql": file(up), "002_a.down.sql": file("x")}, "must be 001"},
		"no digit": {fstest.MapFS{"a_b.up.sql": file(up), "a_b.down.sql": file("x")}, "begin with a number"},
		"no head":  {fstest.MapFS{"001_a.up.sql": file("CREATE"), "001_a.down.sql": file("x")}, "first line"},
	} {
		if _, err := load(c.fs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: load() = %v, want %q", name, err, c.want)
		}
	}
}
