package catalog

import (
	"strings"
	"testing"
)

// What is pinned wins over the connection string, whatever the spelling: of two
// spellings the server would take either.
func TestPinned(t *testing.T) {
	t.Parallel()
	pc, err := parse(Config{ConnString: "postgres://u@h/d?SYNCHRONOUS_COMMIT=off&synchronous_commit=on&Bytea_Output=escape&Application_Name=x&STATEMENT_TIMEOUT=0"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"synchronous_commit": "local", "bytea_output": "hex", "default_transaction_isolation": "read committed",
		"application_name": ApplicationName, "statement_timeout": "5000", "search_path": "pg_catalog",
	} {
		spellings := 0
		for n := range pc.RuntimeParams {
			if strings.EqualFold(n, name) {
				spellings++
			}
		}
		if got := pc.RuntimeParams[name]; got != want || spellings != 1 {
			t.Errorf("%s is %q in %d spellings, want %q in one", name, got, spellings, want)
		}
	}
}
