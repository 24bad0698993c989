package commandtest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// own is a server that a test configures and stops.
type own struct {
	t  *testing.T
	pg *localstack.Postgres
}

func newOwn(t *testing.T, settings map[string]string) own {
	t.Helper()
	pg, err := localstack.StartPostgres(t.Context(), localstack.PostgresConfig{NoSync: true, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close() })
	return own{t, pg}
}

func (o own) stop() {
	o.t.Helper()
	if err := o.pg.Stop(o.t.Context(), localstack.Fast); err != nil {
		o.t.Fatal(err)
	}
}

func (o own) start() {
	o.t.Helper()
	if err := o.pg.Start(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

// loseSlots writes more WAL than slots may keep.
func loseSlots(env *testenv.Env) {
	for range 4 {
		env.Exec(`SELECT pg_logical_emit_message(false, 'noise', '')`)
		env.Exec(`SELECT pg_switch_wal()`)
	}
	env.Exec(`CHECKPOINT`)
}

// A server of one's own goes through what can be wrong with a server: no logical decoding, away, a lost slot, a standby.
func TestServerFaults(t *testing.T) {
	t.Parallel()
	o := newOwn(t, map[string]string{"wal_level": "replica", "max_slot_wal_keep_size": "1MB"})
	env := testenv.New(t, testenv.OnPostgres(o.pg))
	topic := env.CreateTopic("order", 1)

	refuses(t, env, nil, 78, "wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical'", "--init")
	env.Exec(`ALTER SYSTEM SET wal_level = 'logical'`)
	o.stop()

	// Away: waits, and says so once.
	r := env.StartRelay(testenv.RelayOptions{Args: []string{"--init"}})
	notReady(t, r, patience, "postgres", "cannot connect to PostgreSQL")
	pass(t, 8*time.Second)
	if n := strings.Count(r.Output(), "\n"); n > 2 {
		t.Errorf("%d lines while the server is away, want one for the change", n)
	}
	if status, body, err := r.Get(t.Context(), "/livez"); status != 200 {
		t.Errorf("/livez answers %d %s (%v)", status, body, err)
	}
	o.start()
	r.WaitReady(patience)
	insert(t, env, "first")
	wantKeys(t, env, topic, "first")

	// Lost while the rows cannot go anywhere: there is no use in going on.
	env.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('nowhere', 'k', 'T', '{}')`)
	notReady(t, r, patience, env.Topic("nowhere"))
	at := slot(t, env, "confirmed_flush_lsn")
	loseSlots(env)
	refused(t, testenv.Result{Code: r.Wait(patience), Stderr: r.Output()}, 78,
		"slot "+env.Slot+" is lost (wal_status lost, reason wal_removed)", "pg_drop_replication_slot('"+env.Slot+"')")
	if !strings.Contains(r.Output(), "events committed after "+at+" may be missing from the topics") {
		t.Errorf("the message does not name the position %s", at)
	}
	refuses(t, env, nil, 78, "is lost", "DELETE FROM public.cdc_relay_slots", "--init")

	o.stop()
	signal := filepath.Join(o.pg.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o.start()
	refuses(t, env, nil, 78, "the server is a standby (in recovery)", "target_session_attrs=read-write")
	o.stop()
	if err := os.Remove(signal); err != nil {
		t.Fatal(err)
	}
	o.start()
}

// A relay that is halted holds the slot, but not the shutdown of its server, which waits for whoever has not confirmed
// everything.
func TestFastShutdownWhileHalted(t *testing.T) {
	t.Parallel()
	o := newOwn(t, nil)
	env := testenv.New(t, testenv.OnPostgres(o.pg))
	succeeds(t, env, nil, "migrate", "up", "--config", env.WriteConfig(nil))
	env.Exec(`SELECT pg_create_logical_replication_slot('` + env.Slot + `', 'pgoutput')`)
	insert(t, env, "too early") // for the publication: it cannot be decoded, which 18 tells with a notice only
	env.Exec(`CREATE PUBLICATION ` + env.Publication + ` FOR TABLE public.outbox WITH (publish = 'insert')`)
	prepare(t, env)
	r := env.StartRelay(testenv.RelayOptions{})
	notReady(t, r, patience, "role: leader", "the publication did not exist when they were written")
	if slot(t, env, "active") != "true" {
		t.Error("the slot is let go")
	}
	began := time.Now()
	o.stop()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the server takes %v to stop, want at most 3s", took)
	}
	o.start()
	stop(t, r)
}

// On a server where nothing else happens --once ends, also where the log has just begun a new page.
func TestOnceOnAnIdleServer(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.OnPostgres(newOwn(t, map[string]string{"autovacuum": "off"}).pg))
	topic := env.CreateTopic("order", 1)
	once(t, env, "--init") // sets up, and nothing to send
	once(t, env)
	insert(t, env, "first")
	env.Exec(`SELECT pg_switch_wal()`)
	once(t, env)
	wantKeys(t, env, topic, "first")
	env.Exec(`CHECKPOINT`)
	env.Exec(`SELECT pg_switch_wal()`)
	once(t, env)
	once(t, env)
	wantKeys(t, env, topic, "first")
}

// once runs the relay until it is drained, which must not take long.
func once(t *testing.T, env *testenv.Env, args ...string) {
	t.Helper()
	began := time.Now()
	args = append([]string{"run", "--once", "--timeout", "20s", "--config", env.WriteConfig(freePort)}, args...)
	if res := env.Run(args...); res.Code != 0 {
		t.Errorf("run --once exits with %d: %s", res.Code, res.Stderr)
	}
	t.Log("run --once took", time.Since(began).Round(10*time.Millisecond))
}

// A slot that is dropped under a running relay is not made anew, and not waited for.
func TestSlotDroppedWhileRunning(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	r := env.StartRelay(testenv.RelayOptions{Args: []string{"--init"}})
	r.WaitReady(patience)
	conn := env.Conn()
	testenv.Until(t, patience, func(ctx context.Context) error {
		_, err := conn.PgConn().Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '`+env.Slot+`';
			SELECT pg_drop_replication_slot('`+env.Slot+`')`).ReadAll()
		return err
	})
	refused(t, testenv.Result{Code: r.Wait(patience), Stderr: r.Output()}, 78,
		"slot "+env.Slot+" does not exist, although public.cdc_relay_slots knows it", "DELETE FROM public.cdc_relay_slots")
	if name := slot(t, env, "slot_name"); name != "" {
		t.Errorf("slot %s was made anew", name)
	}
}
