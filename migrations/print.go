package migrations

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Format is a migration tool for which the schema can be printed.
type Format string

// The formats. Each script also records itself in public.cdc_relay_migrations, so
// that [Status] is right whatever tool ran it.
const (
	PSQL      Format = "psql"      // one script, a transaction per migration
	Flyway    Format = "flyway"    // V001__….sql and its undo U001__….sql
	Liquibase Format = "liquibase" // one formatted SQL changelog with rollbacks
	EF        Format = "ef"        // Up and Down of Entity Framework Core migrations
)

// Formats lists every [Format].
func Formats() []Format { return []Format{PSQL, Flyway, Liquibase, EF} }

// File is one file as a migration tool expects it.
type File struct {
	Name    string
	Content string
}

// Files returns the schema as files of the format, without the migrations that
// o leaves out.
func Files(f Format, o Options) ([]File, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m Migration) bool { return o.leavesOut(m.Name) })
	switch f {
	case PSQL:
		return []File{{"cdc-relay.sql", psqlScript(all)}}, nil
	case Flyway:
		return flywayFiles(all), nil
	case Liquibase:
		return []File{{"cdc-relay.sql", liquibaseChangelog(all)}}, nil
	case EF:
		return efFiles(all), nil
	}
	return nil, fmt.Errorf("print migrations: unknown format %q, use one of %v", f, Formats())
}

// Print writes the files of the format one after the other, each under its name
// when there are several.
func Print(w io.Writer, f Format, o Options) error {
	files, err := Files(f, o)
	if err != nil {
		return err
	}
	comment := "--"
	if f == EF {
		comment = "//"
	}
	for i, file := range files {
		text := file.Content
		if len(files) > 1 {
			text = fmt.Sprintf("%s ==== %s ====\n%s", comment, file.Name, text)
		}
		if i > 0 {
			text = "\n" + text
		}
		if _, err := io.WriteString(w, text); err != nil {
			return fmt.Errorf("print migrations: %w", err)
		}
	}
	return nil
}

// up is everything that [Up] runs for m in its transaction.
func (m Migration) up() string {
	return fmt.Sprintf("%s\n%s;\nINSERT INTO public.cdc_relay_migrations (version, name, checksum)\nVALUES (%d, '%s', '%s');\n",
		m.Up, versionTableSQL, m.Version, m.Name, m.Checksum())
}

// down is everything that [Down] runs for m in its transaction.
func (m Migration) down() string {
	return fmt.Sprintf("%s\nDELETE FROM public.cdc_relay_migrations WHERE version = %d;\n", m.Down, m.Version)
}

// foreignName is the migration's name among those of an application.
func (m Migration) foreignName() string {
	return "cdc_relay_" + strings.TrimPrefix(m.Name, "cdc_relay_")
}

func psqlScript(all []Migration) string {
	var b strings.Builder
	b.WriteString("\\set ON_ERROR_STOP on\n")
	for _, m := range all {
		fmt.Fprintf(&b, "\n-- %s\nBEGIN;\n%sCOMMIT;\n", m.ID(), m.up())
	}
	return b.String()
}

func flywayFiles(all []Migration) []File {
	const head = "-- cdc-relay %s; renumber it to the next free version of your project.\n"
	var files []File
	for _, m := range all {
		name := fmt.Sprintf("%03d__%s.sql", m.Version, m.foreignName())
		files = append(files,
			File{"V" + name, fmt.Sprintf(head, m.ID()) + m.up()},
			File{"U" + name, fmt.Sprintf(head, m.ID()) + m.down()})
	}
	return files
}

func liquibaseChangelog(all []Migration) string {
	var b strings.Builder
	b.WriteString("--liquibase formatted sql\n")
	for _, m := range all {
		fmt.Fprintf(&b, "\n--changeset cdc-relay:%03d_%s splitStatements:false rollbackSplitStatements:false\n%s/* liquibase rollback\n%s*/\n",
			m.Version, m.foreignName(), m.up(), m.down())
	}
	return b.String()
}

func efFiles(all []Migration) []File {
	const class = `// dotnet ef migrations add %[1]s, then put these methods in place of the generated ones.
protected override void Up(MigrationBuilder migrationBuilder)
{
    migrationBuilder.Sql(@"
%[2]s");
}

protected override void Down(MigrationBuilder migrationBuilder)
{
    migrationBuilder.Sql(@"
%[3]s");
}
`
	verbatim := strings.NewReplacer(`"`, `""`) // within @"…" only the quote is special
	var files []File
	for _, m := range all {
		name := pascalCase(m.foreignName())
		files = append(files, File{name + ".cs", fmt.Sprintf(class, name, verbatim.Replace(m.up()), verbatim.Replace(m.down()))})
	}
	return files
}

func pascalCase(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
