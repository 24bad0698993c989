package catalog

import (
	"strings"
	"testing"
)

func TestParseTableName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63)
	for in, want := range map[string]TableName{
		"outbox":                   {"public", "outbox"},
		"public.outbox":            {"public", "outbox"},
		"Sales.OutBox":             {"sales", "outbox"},
		`"Sales"."Out""box"`:       {"Sales", `Out"box`},
		`sales."out.box"`:          {"sales", "out.box"},
		` sales . outbox `:         {"sales", "outbox"},
		"_a$1.b_2":                 {"_a$1", "b_2"},
		"bücher.ÄUSGANG":           {"bücher", "ÄusGANG"[:2] + "usgang"},
		`"select"`:                 {"public", "select"},
		`" leading and trailing "`: {"public", " leading and trailing "},
		long:                       {"public", long},
	} {
		got, err := ParseTableName(in)
		if err != nil || got != want {
			t.Errorf("ParseTableName(%q) = %+v, %v, want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", " ", ".", "a.", ".a", "a.b.c", "a b", "1a", "$a", `"`, `""`, `"a`, `"a"b`, "a-b", "a;b", "a.\x00b", "\"a\x00\"", long + "a",
	} {
		if got, err := ParseTableName(in); err == nil {
			t.Errorf("ParseTableName(%q) = %+v, want an error", in, got)
		}
	}
}

func TestTableNameSpelling(t *testing.T) {
	t.Parallel()
	for _, name := range []TableName{{"public", "outbox"}, {"Sales", `Out"box`}, {"a.b", "c d"}, {"bücher", "x"}, {"_", "1"}} {
		for _, spelled := range []string{name.String(), name.Quoted()} {
			got, err := ParseTableName(spelled)
			if err != nil || got != name {
				t.Errorf("ParseTableName(%q) = %+v, %v, want %+v", spelled, got, err, name)
			}
		}
	}
	if got, want := (TableName{"sales", "outbox"}).String(), "sales.outbox"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func FuzzParseTableName(f *testing.F) {
	for _, s := range []string{"outbox", `"A""b".c`, " a . b ", `"`, "ä.B$1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := ParseTableName(s)
		if err != nil {
			return
		}
		again, err := ParseTableName(name.Quoted())
		if err != nil || again != name {
			t.Fatalf("ParseTableName(%q) = %+v, whose spelling %s reads as %+v, %v", s, name, name.Quoted(), again, err)
		}
	})
}

func TestValidateSlotName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"cdc_relay", "1", "_", strings.Repeat("a", 63)} {
		if err := ValidateSlotName(name); err != nil {
			t.Errorf("ValidateSlotName(%q) = %v", name, err)
		}
	}
	for _, name := range []string{"", "A", "a-b", "a b", "ä", "a'", "a\n", strings.Repeat("a", 64)} {
		if err := ValidateSlotName(name); err == nil {
			t.Errorf("ValidateSlotName(%q) = nil, want an error", name)
		}
	}
}

func TestLiteral(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a": "'a'", "a'b": "'a''b'", `a\'b`: ` E'a\\''b'`} {
		if got := literal(in); got != want {
			t.Errorf("literal(%q) = %s, want %s", in, got, want)
		}
	}
}
