package commandtest

import (
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// severed returns a proxy that lets nothing through until it is healed.
func severed(t *testing.T, addr string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.New(func() string { return addr })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	p.Cut()
	return p
}

// Kafka that is not there at the start is waited for, without the slot: an instance that cannot publish must not keep it
// from one that can.
func TestBrokerUnreachableAtStart(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	prepare(t, env)
	insert(t, env, "early")
	p := severed(t, env.Brokers[0])
	settings := testenv.Settings{"kafka.brokers": []string{p.Addr()}}
	r := env.StartRelay(testenv.RelayOptions{Settings: settings})
	notReady(t, r, patience, "kafka", p.Addr())
	pass(t, 8*time.Second)
	if slot(t, env, "active") != "false" {
		t.Error("the slot is held by a relay that has no broker")
	}
	if n := strings.Count(r.Output(), "\n"); n > 2 {
		t.Errorf("%d lines while the broker is away, want one for the change", n)
	}
	p.Heal()
	r.WaitReady(10 * time.Second)
	wantKeys(t, env, topic, "early")
	stop(t, r)
}

// The other way round a server that comes late is found within seconds, and set up then.
func TestPostgresUnreachableAtStart(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	u, err := url.Parse(env.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := severed(t, u.Host)
	u.Host = p.Addr()
	r := env.StartRelay(testenv.RelayOptions{Settings: testenv.Settings{"postgres.url": u.String()}, Args: []string{"--init"}})
	notReady(t, r, patience, "postgres", p.Addr())
	p.Heal()
	r.WaitReady(10 * time.Second)
	insert(t, env, "late")
	wantKeys(t, env, topic, "late")
	stop(t, r)
}

// The second relay stands by, is ready, and takes over when the first leaves or dies.
func TestStandby(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	topic := env.CreateTopic("order", 1)
	prepare(t, env)
	a := env.StartRelay(testenv.RelayOptions{})
	a.WaitReady(patience)
	b := env.StartRelay(testenv.RelayOptions{})
	standby(t, b, "held by process "+slot(t, env, "active_pid"), "(cdc-relay)")
	holder := slot(t, env, "active_pid")
	refused(t, env.Run("run", "--once", "--config", env.WriteConfig(freePort)), 75,
		"slot "+env.Slot+" is held by process "+holder, "stop the other process")
	if res := env.Run("validate", "--live", "--config", env.WriteConfig(nil)); res.Code != 0 {
		t.Errorf("validate --live beside a running relay exits with %d: %s", res.Code, res.Stderr)
	}
	if res := env.Run("init", "--config", env.WriteConfig(nil)); res.Code != 0 {
		t.Errorf("init beside a running relay exits with %d: %s", res.Code, res.Stderr)
	}
	insert(t, env, "a")
	wantKeys(t, env, topic, "a")

	stop(t, a)
	b.WaitOutput(`"streaming"`, 5*time.Second)
	b.WaitReady(patience)
	insert(t, env, "b")
	wantKeys(t, env, topic, "a b")
	lines := 0
	for line := range strings.Lines(b.Output()) {
		if !strings.Contains(line, `"check":"server"`) { // the minor versions at hand may be old
			lines++
		}
	}
	if lines != 2 {
		t.Errorf("%d lines from the standby, want one for standing by and one for streaming:\n%s", lines, b.Output())
	}

	a = env.StartRelay(testenv.RelayOptions{})
	standby(t, a, "held by process "+slot(t, env, "active_pid"))
	b.Kill()
	a.WaitOutput(`"streaming"`, 5*time.Second)
	a.WaitReady(patience)
	insert(t, env, "c")
	if got := keys(env, topic, 3); !strings.HasSuffix(got, " c") {
		t.Errorf("keys %q, want c at the end", got)
	}
	stop(t, a)
}

// A standby that could not take over says so, and leaves a free slot alone until it could.
func TestStandbyThatIsNotFit(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	prepare(t, env)
	topic := env.CreateTopic("order", 1)
	leader := env.StartRelay(testenv.RelayOptions{})
	leader.WaitReady(patience)
	r := env.StartRelay(testenv.RelayOptions{})
	standby(t, r)
	env.Exec(`ALTER PUBLICATION ` + env.Publication + ` DROP TABLE public.outbox`)
	notReady(t, r, patience, "role: standby", "not able to take over", "does not publish table public.outbox", "ADD TABLE")
	stop(t, leader)
	answers(t, r, patience, 503, "role: standby", "held by nobody")
	if slot(t, env, "active") != "false" {
		t.Error("the slot is taken")
	}
	env.Exec(`ALTER PUBLICATION ` + env.Publication + ` ADD TABLE public.outbox`)
	r.WaitReady(10 * time.Second)
	insert(t, env, "first")
	wantKeys(t, env, topic, "first")
	stop(t, r)
}

// A holder that neither leaves nor gives a sign of life loses the slot to the standby, and stands by when it wakes up.
func TestFrozenHolder(t *testing.T) {
	t.Parallel()
	env := testenv.New(t)
	prepare(t, env)
	holder := env.StartRelay(testenv.RelayOptions{})
	holder.WaitReady(patience)
	r := env.StartRelay(testenv.RelayOptions{})
	standby(t, r)
	began := time.Now()
	stop(t, r) // a standby has nothing to wait for
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a standby takes %v to stop", took)
	}
	holder.Signal(syscall.SIGSTOP) // neither leaves nor sends a status
	r = env.StartRelay(testenv.RelayOptions{})
	standby(t, r)
	r.WaitOutput(`"streaming"`, 25*time.Second) // wal_sender_timeout is 10 s
	r.WaitReady(patience)
	holder.Signal(syscall.SIGCONT)
	standby(t, holder)
	stop(t, r)
	holder.WaitReady(patience)
	stop(t, holder)
}
