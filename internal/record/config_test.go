package record_test

import (
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/record"
)

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*record.Config)
		want   string
	}{
		"no table":        {func(c *record.Config) { c.Tables = nil }, `outbox.table: not set`},
		"no topic":        {func(c *record.Config) { c.Topic = "" }, `routing.topic: not set`},
		"unknown field":   {func(c *record.Config) { c.Topic = "t.{aggregate}" }, `routing.topic: template "t.{aggregate}" has the unknown field {aggregate}`},
		"payload":         {func(c *record.Config) { c.Key = "{payload}" }, `routing.key: template "{payload}" has the unknown field {payload}`},
		"mapped headers":  {func(c *record.Config) { c.Key, c.Columns = "{headers}", map[string]string{"headers": "h"} }, `unknown field {headers}`},
		"open brace":      {func(c *record.Config) { c.Key = "a{id" }, `routing.key: template "a{id": { at byte 2: unbalanced brace`},
		"close brace":     {func(c *record.Config) { c.Key = "id}" }, `} at byte 3: unbalanced brace`},
		"brace in brace":  {func(c *record.Config) { c.Key = "{a{b}" }, `{ at byte 1: unbalanced brace`},
		"no name":         {func(c *record.Config) { c.Key = "{}" }, `{} at byte 1 names no field`},
		"column name":     {func(c *record.Config) { c.Key, c.Columns = "{key}", map[string]string{"aggregateid": "key"} }, `unknown field {key}`},
		"own header":      {func(c *record.Config) { c.HeaderColumns = map[string]string{"content-type": "ct"} }, `map the column as field contenttype under outbox.columns`},
		"reserved header": {func(c *record.Config) { c.HeaderColumns = map[string]string{"cdc-relay-x": "x"} }, `outbox.header_columns: header "cdc-relay-x" is reserved`},
		"empty header":    {func(c *record.Config) { c.HeaderColumns = map[string]string{"": "x"} }, `header "" has column "x"; name both`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := defaults()
			tt.change(&c)
			_, err := record.New(c)
			if _, ok := errors.AsType[*record.ConfigError](err); !ok || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestAllConfigErrorsAtOnce(t *testing.T) {
	t.Parallel()
	c := record.Config{Topic: "{x}", Key: "{", HeaderColumns: map[string]string{"id": "x"}}
	if got := len(c.Check()); got != 4 {
		t.Errorf("%d problems, want 4: %v", got, c.Check())
	}
}

func TestRequiredColumns(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.Columns = map[string]string{"payload": "body", "tenant": "tenant_id", "aggregateid": "id"}
	c.Key = "{tenant}:{aggregateid}:{tenant}"
	want := []string{"id", "body", "aggregatetype", "tenant_id"}
	if got := c.RequiredColumns(); !slices.Equal(got, want) {
		t.Errorf("RequiredColumns() = %q, want %q", got, want)
	}
}

// FuzzTemplate writes what was parsed back as a template, which must parse to the
// same parts.
func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"", "a.{b}", "{a}{b}", "{{a}}", "{{{a}}}", "{", "}", "{}", "}}{{", "a{b{c}"} {
		f.Add(seed)
	}
	escape := strings.NewReplacer("{", "{{", "}", "}}")
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := record.ParseTemplate(text)
		if err != nil {
			return
		}
		var back strings.Builder
		for i, p := range parts {
			if (p.Field() == "") == (p.Text() == "") {
				t.Fatalf("part %d of %q is empty or both", i, text)
			}
			back.WriteString(escape.Replace(p.Text()))
			if p.Field() != "" {
				back.WriteString("{" + p.Field() + "}")
			}
		}
		again, err := record.ParseTemplate(back.String())
		if err != nil || !slices.Equal(again, parts) {
			t.Errorf("%q has the parts %v, but %q has %v (%v)", text, parts, back.String(), again, err)
		}
	})
}

func FuzzBytea(f *testing.F) {
	for _, seed := range []string{"", `\x`, `\x00ff10`, `\xABcd`, `\xabc`, `\xzz`, `\001`, "x"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, ok := record.AppendBytea([]byte("."), text)
		digits, isHex := strings.CutPrefix(string(text), `\x`)
		want, err := hex.DecodeString(digits)
		if ok != (isHex && err == nil) {
			t.Fatalf("AppendBytea(%q) = %t", text, ok)
		}
		if ok && string(got) != "."+string(want) || !ok && string(got) != "." {
			t.Errorf("AppendBytea(%q) = %q", text, got)
		}
	})
}
