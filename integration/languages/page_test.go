package languages

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/migrations"
)

const page = "../../docs/languages.md"

var block = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// blocks returns the page's code in one language.
func blocks(t *testing.T, language string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		if m[1] == language {
			all = append(all, m[2])
		}
	}
	return all
}

// only returns the one block of a language.
func only(t *testing.T, language string) string {
	t.Helper()
	all := blocks(t, language)
	if len(all) != 1 {
		t.Fatalf("%s has %d blocks of %s, want 1", page, len(all), language)
	}
	return all[0]
}

// newEnv returns a database with the outbox, the inbox and the page's own tables.
func newEnv(t *testing.T) *testenv.Env {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka())
	if err := migrate(t.Context(), env.URL); err != nil {
		t.Fatal(err)
	}
	for statement := range strings.SplitSeq(strings.TrimSpace(blocks(t, "sql")[0]), ";\n") {
		env.Exec(statement)
	}
	return env
}

func migrate(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	all, err := migrations.All()
	if err != nil {
		return err
	}
	ran := 0
	for _, m := range all {
		if m.Name != "outbox" && m.Name != "cdc_relay_inbox" {
			continue
		}
		if _, err := conn.Exec(ctx, m.Up); err != nil {
			return err
		}
		ran++
	}
	if ran != 2 {
		return errors.New("there are no migrations of the names outbox and cdc_relay_inbox")
	}
	return nil
}

// The statements for failures do what the page says of them.
func TestPageStatements(t *testing.T) {
	statements := blocks(t, "sql")
	if len(statements) != 3 {
		t.Fatalf("%s has %d blocks of SQL, want 3", page, len(statements))
	}
	env := newEnv(t)
	conn := env.Conn()
	for n := 1; n <= 2; n++ {
		var failures int
		if err := conn.QueryRow(t.Context(), statements[1], "m1", "no stock").Scan(&failures); err != nil || failures != n {
			t.Fatalf("failure %d: got %d, %v", n, failures, err)
		}
	}
	for _, first := range []bool{true, false} {
		var settled bool
		err := conn.QueryRow(t.Context(), statements[2], "m1", "orders", 3, int64(7), []byte("k"), []byte("v"),
			[][]byte{[]byte("id")}, [][]byte{[]byte("m1")}, "no stock", time.Unix(1764579600, 0)).Scan(&settled)
		if err != nil || settled != first {
			t.Fatalf("dead letter: got %t, %v, want %t", settled, err, first)
		}
	}
	for query, want := range map[string]string{
		"SELECT concat_ws('|', state, deliveries, reason, topic, partition, record_offset, blocks, extract(epoch FROM record_time)::bigint) FROM cdc_relay_inbox_letter": "dead|2|max_deliveries|orders|3|7|f|1764579600",
		"SELECT public.cdc_inbox_claim('shipping', 'm1')": "false",
		"SELECT count(*) FROM cdc_relay_inbox_attempt":    "0",
	} {
		if got := env.Text(query); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

// Who is told that a snippet was not run by us must be told so, and nobody else.
func TestPageSaysWhatIsNotRun(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	run := map[string]bool{"java": true, "js": true, "python": true, "sql": true}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, _, _ := strings.Cut(section, "\n")
		for _, m := range block.FindAllStringSubmatch(section, -1) {
			if says := strings.Contains(section, "**Not run by us.**"); says == run[m[1]] {
				t.Errorf("section %s has code in %s, run by a test: %s, and says that it is not run: %s",
					strconv.Quote(title), m[1], strconv.FormatBool(run[m[1]]), strconv.FormatBool(says))
			}
		}
	}
}
