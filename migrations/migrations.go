// Package migrations holds the schema that cdc-relay brings along, as plain SQL
// files that psql can run, and a small runner for them.
//
// What exists before its migration runs is left alone: a table public.outbox or a
// publication cdc_relay that somebody else made is reported as [Foreign], is not
// recorded, and so is never dropped by [Down].
//
// The files are the public contract of the schema. A file that was released is
// never changed (the runner compares checksums); a change is a new file.
package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed *.sql
var files embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int
	Name    string // the file's name without number and suffix, such as outbox
	Up      string // SQL that makes it, without transaction control
	Down    string // SQL that removes it, without transaction control
	creates object // what Up creates, as its first line says
}

// ID returns number and name, such as 001_outbox.
func (m Migration) ID() string { return fmt.Sprintf("%03d_%s", m.Version, m.Name) }

// Checksum returns the SHA-256 of Up in hex.
func (m Migration) Checksum() string {
	sum := sha256.Sum256([]byte(m.Up))
	return hex.EncodeToString(sum[:])
}

// object is what a migration creates and must not find there before.
type object struct {
	kind string // table or publication
	name string // as it is written in SQL
}

const createsPrefix = "-- creates: "

// All returns every migration in ascending order.
func All() ([]Migration, error) { return load(files) }

func load(fsys fs.FS) ([]Migration, error) {
	ups, err := fs.Glob(fsys, "*.up.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	all := make([]Migration, 0, len(ups))
	for i, up := range ups { // Glob sorts, and the numbers have three digits
		m, err := read(fsys, up)
		if err != nil {
			return nil, err
		}
		if m.Version != i+1 {
			return nil, fmt.Errorf("read migration %s: its number must be %03d", up, i+1)
		}
		all = append(all, m)
	}
	return all, nil
}

func read(fsys fs.FS, up string) (Migration, error) {
	base := strings.TrimSuffix(up, ".up.sql")
	number, name, _ := strings.Cut(base, "_")
	version, err := strconv.Atoi(number)
	if err != nil {
		return Migration{}, fmt.Errorf("read migration %s: its name must begin with a number", up)
	}
	upSQL, err := fs.ReadFile(fsys, up)
	if err != nil {
		return Migration{}, fmt.Errorf("read migration: %w", err)
	}
	downSQL, err := fs.ReadFile(fsys, base+".down.sql")
	if err != nil {
		return Migration{}, fmt.Errorf("read migration: %w", err)
	}
	m := Migration{Version: version, Name: name, Up: string(upSQL), Down: string(downSQL)}
	first, _, _ := strings.Cut(m.Up, "\n")
	creates, ok := strings.CutPrefix(first, createsPrefix)
	if !ok {
		return Migration{}, fmt.Errorf("read migration %s: its first line must be %q and what it creates", up, createsPrefix)
	}
	m.creates.kind, m.creates.name, _ = strings.Cut(creates, " ")
	return m, nil
}
