package commandtest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// buried is a dead letter that no relay has written.
type buried struct {
	kind, topic, key, reason, payload string
	state                             string // dead unless said
	hours                             int    // of age
}

// bury writes dead letters of the slot and returns the number of the first.
func bury(t *testing.T, env *testenv.Env, letters ...buried) (first int) {
	t.Helper()
	first = -1
	for i, l := range letters {
		if l.state == "" {
			l.state = "dead"
		}
		var id int
		err := env.Conn().QueryRow(t.Context(), `INSERT INTO public.cdc_relay_dead_letter (slot, system_id, commit_lsn, change_lsn, kind, index, state,
				source_table, message_id, topic, record_key, value, value_bytes, value_kept, header_names, header_values, type,
				record_time, commit_time, reason, error, attempts, first_failed_at, last_failed_at, may_be_published,
				ordinal, marker, changed_lsn, created_at, changed_at)
			SELECT $1, '1', '0/1', $2::text::pg_lsn, 'r', 0, $3, 'public.outbox', convert_to('message-' || $4, 'UTF8'), $5, convert_to($6, 'UTF8'),
				convert_to($7, 'UTF8'), length($7), true, ARRAY['id', 'token']::bytea[], ARRAY['message', 'header-secret']::bytea[], $8,
				now(), now(), $9, 'the broker refuses it', 1, now(), now(), false, 1, md5($4), '0/1',
				now() - $10::int * interval '1 hour', now() - $10::int * interval '1 hour'
			RETURNING id`,
			env.Slot, fmt.Sprintf("0/%X", i+1), l.state, l.key, l.topic, l.key, l.payload, l.kind, l.reason, l.hours).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		if first < 0 {
			first = id
		}
	}
	return first
}

// dlq runs the command, which has to end with the code.
func dlq(t *testing.T, env *testenv.Env, code int, args ...string) testenv.Result {
	t.Helper()
	res := env.Run(append([]string{"dlq"}, args...)...)
	if res.Code != code {
		t.Errorf("dlq %v exits with %d, want %d\n%s%s", args, res.Code, code, res.Stdout, res.Stderr)
	}
	if !strings.Contains(strings.Join(args, " "), "--show-payload") && strings.Contains(res.Stdout+res.Stderr, "secret") {
		t.Errorf("dlq %v shows a payload:\n%s%s", args, res.Stdout, res.Stderr)
	}
	return res
}

// jsonOf decodes what a command prints as JSON.
func jsonOf[T any](t *testing.T, res testenv.Result) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(res.Stdout), &v); err != nil {
		t.Errorf("no JSON: %v\n%s", err, res.Stdout)
	}
	return v
}

type listed struct {
	ID    int
	State string
	Key   string
	Value *string
}

// list returns the keys of what a filter chooses, in order.
func list(t *testing.T, env *testenv.Env, args ...string) string {
	t.Helper()
	var keys []string
	for _, l := range jsonOf[[]listed](t, dlq(t, env, 0, append([]string{"list", "-o", "json"}, args...)...)) {
		keys = append(keys, l.Key)
	}
	return strings.Join(keys, " ")
}

// Each filter chooses what it says, tables and JSON show it, and neither shows a payload before it is asked to.
func TestDLQLook(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	config := []string{"--config", env.WriteConfig(nil)}
	with := func(args ...string) []string { return append(args, config...) }
	refused(t, env.Run(with("dlq", "stats")...), 78, `relation "public.cdc_relay_dead_letter" does not exist`, "cdc-relay migrate up")
	prepare(t, env)

	if got := dlq(t, env, 0, with("list", "--exit-code")...).Stdout; got != "slot "+env.Slot+" has no dead letter that matches\n" {
		t.Errorf("without any: %q", got)
	}
	if got := dlq(t, env, 0, with("list", "-o", "json")...).Stdout; got != "[]\n" {
		t.Errorf("without any, as JSON: %q", got)
	}
	first := bury(t, env,
		buried{kind: "Placed", topic: "orders", key: "a", reason: "too_large", payload: "secret-1", hours: 48},
		buried{kind: "Placed", topic: "no good\n", key: "b\x1b[2J", reason: "invalid_topic", payload: "secret-2\x1b[2J", hours: 24},
		buried{kind: "Paid", topic: "payments", key: "c", reason: "too_large", payload: "secret-3", hours: 1},
		buried{kind: "Paid", topic: "payments", key: "d", reason: "attempts", payload: "secret-4", state: "discarded"},
		buried{kind: "Paid", topic: "payments", key: "e", reason: "attempts", payload: "secret-5", state: "replayed"})
	for args, want := range map[string]string{
		"":                                    "a b\x1b[2J c",
		"--type Placed":                       "a b\x1b[2J",
		"--topic payments":                    "c",
		"--aggregate a":                       "a",
		"--reason too_large":                  "a c",
		"--reason too_large --type Paid":      "c",
		"--id message-c":                      "c",
		"--since 30h":                         "b\x1b[2J c",
		"--until 12h":                         "a b\x1b[2J",
		"--since 30h --until 12h":             "b\x1b[2J",
		"--since 2000-01-01":                  "a b\x1b[2J c",
		"--max 2":                             "a b\x1b[2J",
		"--state all --max 0":                 "a b\x1b[2J c d e",
		"--state discarded,replayed":          "d e",
		fmt.Sprint(first, first+2):            "a c",
		fmt.Sprint(first+2, " --type Placed"): "",
		"--type paid":                         "",
	} {
		if got := list(t, env, with(strings.Fields(args)...)...); got != want {
			t.Errorf("list %s: %q, want %q", args, got, want)
		}
	}

	table := dlq(t, env, 3, with("list", "--exit-code")...)
	if lines := strings.Split(table.Stdout, "\n"); len(lines) != 5 || !strings.Contains(lines[0], "REASON") ||
		!strings.Contains(lines[2], `no good\n`) || !strings.Contains(lines[2], `b\x1b[2J`) || strings.Contains(table.Stdout, "\x1b") {
		t.Errorf("list prints\n%s", table.Stdout)
	}
	if n := fmt.Sprint(first + 1); !strings.Contains(dlq(t, env, 0, with("show", n)...).Stdout, "headers           id, token\n") {
		t.Error("show does not name the headers")
	}
	whole := dlq(t, env, 0, with("show", fmt.Sprint(first+1), "--show-payload")...).Stdout
	if !strings.Contains(whole, "\nvalue\nsecret-2\\x1b[2J\n") || !strings.Contains(whole, "  token: header-secret\n") || strings.Contains(whole, "\x1b") {
		t.Errorf("show --show-payload prints\n%s", whole)
	}
	for _, command := range []string{"list", "show"} {
		got := jsonOf[[]listed](t, dlq(t, env, 0, with(command, fmt.Sprint(first+1), "--show-payload", "-o", "json")...))
		if len(got) != 1 || got[0].Value == nil || *got[0].Value != "secret-2\x1b[2J" {
			t.Errorf("%s --show-payload -o json: %+v", command, got)
		}
	}
	refused(t, env.Run(with("dlq", "show", "999999")...), 3, "has no dead letter 999999", "cdc-relay dlq list")

	if got := dlq(t, env, 3, with("stats", "--exit-code")...).Stdout; strings.Count(got, "\n") != 5 || !strings.Contains(got, "too_large          2  ") {
		t.Errorf("stats prints\n%s", got)
	}
	dlq(t, env, 3, with("stats", "--exit-code", "--state", "replayed")...)
	type stat struct {
		State, Reason string
		Count         int
	}
	if got := jsonOf[[]stat](t, dlq(t, env, 0, with("stats", "--state", "discarded", "-o", "json")...)); len(got) != 1 || got[0] != (stat{"discarded", "attempts", 1}) {
		t.Errorf("stats -o json: %+v", got)
	}
	other := append(with("stats"), "--config", env.WriteConfig(testenv.Settings{"postgres.slot": "another"}))
	if got, want := dlq(t, env, 0, other...).Stdout, "slot another has no dead letters; slot "+env.Slot+" has 3 dead letters (postgres.slot)\n"; got != want {
		t.Errorf("stats of another slot: %q, want %q", got, want)
	}
}

// discard and purge change what they are told to and nothing else, and say what.
func TestDLQDiscardAndPurge(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	prepare(t, env)
	config := []string{"--config", env.WriteConfig(nil)}
	with := func(args ...string) []string { return append(args, config...) }
	states := func() string {
		return env.Text(`SELECT coalesce(string_agg(convert_from(record_key, 'UTF8') || ':' || state, ' ' ORDER BY id), '') FROM public.cdc_relay_dead_letter`)
	}
	check := func(want string) {
		t.Helper()
		if got := states(); got != want {
			t.Errorf("now %s, want %s", got, want)
		}
	}
	prints := func(want string, args ...string) {
		t.Helper()
		if got := dlq(t, env, 0, with(args...)...).Stdout; !strings.Contains(got, want) {
			t.Errorf("dlq %v prints\n%swant %q", args, got, want)
		}
	}
	first := bury(t, env,
		buried{topic: "test", key: "a", reason: "too_large"}, buried{topic: "test", key: "b", reason: "attempts"},
		buried{topic: "orders", key: "c", reason: "attempts"}, buried{topic: "orders", key: "d", reason: "attempts"},
		buried{topic: "orders", key: "e", reason: "attempts", state: "replayed", hours: 100})
	prints("would discard 2 dead letters:", "discard", "--topic", "test", "--dry-run")
	check("a:dead b:dead c:dead d:dead e:replayed")
	prints("discarded 2 dead letters\n", "discard", "--topic", "test")
	check("a:discarded b:discarded c:dead d:dead e:replayed")
	prints("has no dead letter that matches and is still dead\n", "discard", "--topic", "test")
	res := dlq(t, env, 0, with("discard", fmt.Sprint(first), fmt.Sprint(first+2), "999999")...)
	if !strings.Contains(res.Stdout, "discarded 1 dead letter\n") || !strings.Contains(res.Stderr, fmt.Sprintf("left alone: %d is discarded since", first)) ||
		!strings.Contains(res.Stderr, "left alone: slot "+env.Slot+" has no dead letter 999999\n") {
		t.Errorf("discard prints\n%s%s", res.Stdout, res.Stderr)
	}
	check("a:discarded b:discarded c:discarded d:dead e:replayed")

	prints("purged 1 dead letter\nkept 3 ", "purge", "--until", "2d")
	check("a:discarded b:discarded c:discarded d:dead")
	prints("purged 1 dead letter\n", "purge", "--all", "--max", "1")
	check("b:discarded c:discarded d:dead")
	type purged struct{ Purged int }
	if got := jsonOf[purged](t, dlq(t, env, 0, with("purge", "--all", "-o", "json")...)); got.Purged != 2 {
		t.Errorf("purge -o json: %+v", got)
	}
	check("d:dead")
	type discarded struct {
		Matched, Discarded int
		DryRun             bool `json:"dry_run"`
	}
	if got := jsonOf[discarded](t, dlq(t, env, 0, with("discard", "--all", "--dry-run", "-o", "json")...)); got != (discarded{1, 0, true}) {
		t.Errorf("discard --dry-run -o json: %+v", got)
	}
	if got := jsonOf[discarded](t, dlq(t, env, 0, with("discard", "--all", "-o", "json")...)); got != (discarded{1, 1, false}) {
		t.Errorf("discard -o json: %+v", got)
	}
	check("d:discarded")
}

// A role that may only log in is told the rights that it lacks, one that may read can look but not change anything.
func TestDLQRights(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.NoKafka())
	prepare(t, env)
	first := bury(t, env, buried{topic: "orders", key: "a", reason: "too_large"})
	role := env.Slot + "_role"
	env.Exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { dropRoles(env, role) })
	as := edit(env.URL, func(u *url.URL) { u.User = url.UserPassword(role, "secret") })
	with := func(args ...string) []string {
		return append(args, "--config", env.WriteConfig(testenv.Settings{"postgres.url": as}))
	}
	number := fmt.Sprint(first)
	for _, args := range [][]string{
		{"list"},
		{"stats"},
		{"show", number},
		{"replay", number},
		{"discard", number},
		{"purge", "--all"},
	} {
		refused(t, env.Run(with(append([]string{"dlq"}, args...)...)...), 77, "permission denied", "GRANT")
	}
	env.Exec(`GRANT SELECT ON public.cdc_relay_dead_letter TO ` + role)
	if got := list(t, env, with()...); got != "a" {
		t.Errorf("lists %q", got)
	}
	dlq(t, env, 0, with("show", number)...)
	dlq(t, env, 0, with("replay", number, "--dry-run")...)
	for _, args := range [][]string{{"replay", number}, {"discard", number}} {
		refused(t, env.Run(with(append([]string{"dlq"}, args...)...)...), 77, "permission denied", "GRANT")
	}
	if got := env.Text(`SELECT state FROM public.cdc_relay_dead_letter`); got != "dead" {
		t.Errorf("it is %s", got)
	}
}
