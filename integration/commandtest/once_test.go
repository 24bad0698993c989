package commandtest

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// A single run sends what is committed, repeats nothing, and says with 4 how much it has left.
func TestOnce(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	once(t, env, "--init")
	for key := range strings.FieldsSeq("a b c") {
		insert(t, env, key)
	}
	once(t, env)
	once(t, env)
	wantKeys(t, env, topic, "a b c")

	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
		VALUES ('late', '1', 'T', '{}'), ('late', '2', 'T', '{}'), ('order', 'd', 'T', '{}')`)
	end := env.Text(`SELECT pg_current_wal_insert_lsn()`)
	res := env.Run("run", "--once", "--timeout", "3s", "--config", env.WriteConfig(freePort))
	refused(t, res, 4, "2 rows", "run it again")
	if !strings.Contains(res.Stderr, env.Topic("late")) {
		t.Errorf("nothing names the missing topic:\n%s", res.Stderr)
	}
	notPast(t, env, end)
	late := env.CreateTopic("late", 1)
	once(t, env)
	wantKeys(t, env, late, "1 2")
}

// A single run does not wait for servers.
func TestOnceWithoutServers(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	prepare(t, env)
	port, err := localstack.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	for says, settings := range map[string]testenv.Settings{
		"cannot connect to PostgreSQL": {"postgres.url": "postgres://u@" + port.Addr() + "/d?sslmode=disable"},
		"reach kafka":                  {"kafka.brokers": []string{port.Addr()}},
	} {
		settings["http.listen"] = "127.0.0.1:0"
		refused(t, env.Run("run", "--once", "--config", env.WriteConfig(settings)), 69, says, "")
	}
}

// A second signal does not wait for anything.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	r := env.StartRelay(testenv.RelayOptions{Args: []string{"--init"}})
	r.WaitReady(patience)
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('nowhere', 'k', 'T', '{}')`)
	notReady(t, r, patience, env.Topic("nowhere"))
	r.Signal(syscall.SIGTERM)
	draining(t, r)
	began := time.Now()
	r.Signal(syscall.SIGTERM)
	if code := r.Wait(patience); code != 130 {
		t.Errorf("exits with %d, want 130", code)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the second signal takes %v", took)
	}
}
