// Package languages runs the snippets of docs/languages.md, as they stand on the page.
package languages

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/process"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// patience is generous: it decides nothing but how long a failure takes.
const patience = time.Minute

func TestJava(t *testing.T) {
	need(t, "a JDK (17 or newer)", "java", "javac")
	classes, dir := jdbc(t), t.TempDir()
	write(t, dir, "Orders.java", []byte(only(t, "java")))
	write(t, dir, "Drive.java", read("Drive.java"))
	must(t, process.Run(t.Context(), process.Options{}, dir, "javac", "-d", dir, "Orders.java", "Drive.java"))
	check(t, dir, "java", "-cp", dir+string(os.PathListSeparator)+classes, "Drive")
}

func TestNode(t *testing.T) {
	need(t, "Node (18 or newer)", "node")
	modules, dir := nodeModules(t), t.TempDir()
	must(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	write(t, dir, "orders.mjs", []byte(only(t, "js")))
	write(t, dir, "drive.mjs", read("drive.mjs"))
	check(t, dir, "node", "drive.mjs")
}

func TestPython(t *testing.T) {
	interpreter, dir := python(t), t.TempDir()
	write(t, dir, "orders.py", []byte(only(t, "python")))
	write(t, dir, "drive.py", read("drive.py"))
	check(t, dir, interpreter, "drive.py")
}

func write(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
}

// driver is a child that takes a command a line and gives an answer a line.
type driver struct {
	t       *testing.T
	in      io.Writer
	answers <-chan string
	output  *process.Output
}

// start runs the child until the test ends.
func start(t *testing.T, env *testenv.Env, dir, command string, args ...string) *driver {
	t.Helper()
	u, err := url.Parse(env.URL)
	must(t, err)
	password, _ := u.User.Password()
	jdbcURL := "jdbc:postgresql://" + u.Host + u.Path + "?" + url.Values{
		"user": {u.User.Username()}, "password": {password}, "sslmode": {"disable"},
	}.Encode()

	in, stdin, err := os.Pipe()
	must(t, err)
	stdout, out, err := os.Pipe()
	must(t, err)
	cmd := exec.Command(command, args...)
	d := &driver{t: t, in: stdin, output: &process.Output{}}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, in, out, d.output
	cmd.Env = append(process.Environ(), "TEST_URL="+env.URL, "TEST_JDBC_URL="+jdbcURL)
	child, err := process.Start(cmd, process.Options{})
	must(t, err)
	in.Close()
	out.Close()
	answers := make(chan string)
	go func() {
		defer close(answers)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			answers <- lines.Text()
		}
	}()
	d.answers = answers
	t.Cleanup(func() {
		stdin.Close() // The end of the commands.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		select {
		case <-child.Done():
			if child.Err() != nil {
				t.Errorf("%s ends with %v: %s", command, child.Err(), d.output)
			}
		case <-ctx.Done():
			t.Errorf("%s does not end", command)
			_ = child.Signal(syscall.SIGKILL)
		}
		for range answers { // Nobody asked for more.
		}
		stdout.Close()
	})
	return d
}

func (d *driver) send(command string, args ...any) {
	d.t.Helper()
	_, err := io.WriteString(d.in, fmt.Sprintf(command, args...)+"\n")
	must(d.t, err)
}

func (d *driver) expect(want string) {
	d.t.Helper()
	select {
	case got, open := <-d.answers:
		if !open || got != want {
			d.t.Fatalf("the answer is %q, want %q; it printed: %s", got, want, d.output)
		}
	case <-time.After(patience):
		d.t.Fatalf("no answer, want %q; it printed: %s", want, d.output)
	}
}

func (d *driver) ask(want, command string, args ...any) {
	d.t.Helper()
	d.send(command, args...)
	d.expect(want)
}

// check runs the snippets through all that the page promises.
func check(t *testing.T, dir, command string, args ...string) {
	env := newEnv(t)
	d := start(t, env, dir, command, args...)
	want := func(expected, query string, args ...any) {
		t.Helper()
		if got := env.Text(query, args...); got != expected {
			t.Errorf("%s: got %s, want %s", query, got, expected)
		}
	}
	const effects, claims = "SELECT count(*) FROM shipment", "SELECT count(*) FROM cdc_relay_inbox"

	// Order and event, both or neither.
	id, second := outbox.NewID(), outbox.NewID()
	d.ask("placed", "place %s 42", id)
	want("order|42|OrderPlaced|42", "SELECT concat_ws('|', aggregatetype, aggregateid, type, payload->>'number') FROM outbox WHERE id = $1", id)
	want("1", "SELECT count(*) FROM orders")
	d.ask("error 23505", "place %s 42", second) // the order is there already
	d.ask("error 23505", "place %s 43", id)     // the event is
	want("1", "SELECT count(*) FROM outbox")
	want("1", "SELECT count(*) FROM orders")

	// Once, and a duplicate is no error.
	d.ask("first", "ship %s 42", id)
	d.ask("duplicate", "ship %s 42", id)
	want("1", effects)
	want("shipping|processed", "SELECT concat_ws('|', consumer, outcome) FROM cdc_relay_inbox WHERE message_id = $1", id)

	// A failed effect takes the claim back.
	d.ask("error 23514", "ship %s unshippable", second)
	want("1", claims)
	d.ask("first", "ship %s 43", second)
	want("2", effects)

	// One that another is at work on is waited for: a duplicate if that commits.
	conn := env.Conn()
	for _, end := range []struct{ how, answer, effects string }{{"COMMIT", "duplicate", "2"}, {"ROLLBACK", "first", "3"}} {
		id := outbox.NewID()
		for _, statement := range []string{"BEGIN", "SELECT cdc_inbox_claim('shipping', '" + id + "')"} {
			_, err := conn.Exec(t.Context(), statement)
			must(t, err)
		}
		d.send("ship %s 44", id)
		testenv.Until(t, patience, func(context.Context) error {
			if n := env.Text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())"); n != "1" {
				return fmt.Errorf("%s sessions wait", n)
			}
			return nil
		})
		_, err := conn.Exec(t.Context(), end.how)
		must(t, err)
		d.expect(end.answer)
		want(end.effects, effects)
	}
}
