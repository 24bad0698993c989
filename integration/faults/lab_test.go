package faults_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/checker"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/proxy"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// lab is a set of servers of its own, proxies before them, a workload, its judge, and the relays that a test starts.
type lab struct {
	t      *testing.T
	env    *testenv.Env
	check  *checker.Checker
	random *rand.Rand // decides the faults
	began  time.Time

	server     *localstack.Postgres // the primary
	standby    *localstack.Postgres // nil if there is none
	primary    atomic.Pointer[string]
	kafka      *localstack.Kafka
	toPostgres *proxy.Proxy
	toBrokers  []*proxy.Proxy // one before each broker

	settings testenv.Settings // of every relay
	started  int              // relays so far
	endLoad  func() error
	loaded   time.Time // when the workload began

	// beforeLife is called before each relay that killRounds starts. May be nil.
	beforeLife func()
}

// plan says what a lab is to be.
type plan struct {
	brokers  int
	standby  bool // PostgreSQL has one
	settings testenv.Settings
	repeats  checker.Repeats
	fenced   bool
	poison   int // one row in so many cannot be published; 0: none
	maxRows  int // of a transaction; 0: 500
	rate     int // rows per second; 0: as the flag says
}

// largest is what the topics take in bytes where the plan has poison: one row in five of that is larger.
const largest = 64 << 10

// slotTimeout is the wal_sender_timeout of the relays: how long a dead leader can keep the slot.
const slotTimeout = 3 * time.Second

// newLab starts the servers, prepares the database, and begins to write.
func newLab(t *testing.T, p plan) *lab {
	t.Helper()
	l := &lab{
		t: t, began: time.Now(), random: rand.New(rand.NewPCG(*seed, 0)),
		settings: testenv.Settings{"postgres.wal_sender_timeout": slotTimeout.String()},
	}
	t.Logf("seed %d: %s -faults.seed=%d", *seed, t.Name(), *seed)
	if p.poison > 0 {
		l.settings["kafka.max_message_bytes"] = largest
	}
	maps.Copy(l.settings, p.settings)
	l.startServers(p)
	types := []string{"order", "invoice", "shipment"}
	// Two of three must have a record before it is acknowledged.
	config := []string{"min.insync.replicas", fmt.Sprint((p.brokers + 1) / 2)}
	if p.poison > 0 {
		config = append(config, "max.message.bytes", fmt.Sprint(largest))
	}
	for _, name := range types {
		l.env.CreateTopic(name, 4, config...)
	}
	if res := l.env.Run("init", "--config", l.env.WriteConfig(l.settings)); res.Code != 0 {
		t.Fatal(res.Stderr)
	}
	check, err := checker.New(checker.Config{
		URL: l.env.URL, Slot: l.env.Slot, Brokers: l.env.Brokers, TopicPrefix: l.env.Prefix, Types: types, Keys: 1200,
		MaxRows: cmp.Or(p.maxRows, 500), Rollbacks: 0.1, Writers: 4, Rate: cmp.Or(p.rate, *rate), Padding: 100,
		Poison: p.poison, PoisonBytes: largest, Seed: *seed, Repeats: p.repeats, Fenced: p.fenced,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(check.Close)
	l.check = check
	if err := check.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.load()
	return l
}

// startServers starts Postgres, with a standby if need be, and Kafka. The workload and its judge reach the primary by a
// link that nothing spoils, the relays by another one.
func (l *lab) startServers(p plan) {
	l.t.Helper()
	cfg := localstack.PostgresConfig{Major: testenv.Major(), NoSync: true}
	if p.standby {
		cfg.Settings = followed()
	}
	server, err := localstack.StartPostgres(l.t.Context(), cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	l.closeLater(server.Close)
	l.lead(server)
	if p.standby {
		l.follow()
	}
	l.env = testenv.New(l.t, testenv.OnPostgres(server), testenv.NoKafka())
	address := func() string { return *l.primary.Load() }
	l.toPostgres = l.proxy(address)
	spoilt := l.through(l.toPostgres)
	l.env.URL = l.through(l.proxy(address))
	l.settings["postgres.url"], l.settings["kafka.brokers"] = spoilt, l.startKafka(p.brokers)
}

// lead makes a server the one that all are led to.
func (l *lab) lead(server *localstack.Postgres) {
	l.server = server
	address := server.Addr()
	l.primary.Store(&address)
}

// through returns the URL of the lab's database by way of a proxy.
func (l *lab) through(p *proxy.Proxy) string {
	l.t.Helper()
	u, err := url.Parse(l.env.URL)
	if err != nil {
		l.t.Fatal(err)
	}
	u.Host = p.Addr()
	return u.String()
}

// startKafka starts brokers behind proxies, and returns the addresses of those.
func (l *lab) startKafka(brokers int) (addrs []string) {
	l.t.Helper()
	var started atomic.Pointer[localstack.Kafka]
	for i := range brokers {
		p := l.proxy(func() string { return started.Load().AddrsOf(localstack.Proxied)[i] })
		l.toBrokers, addrs = append(l.toBrokers, p), append(addrs, p.Addr())
	}
	kafka, err := localstack.StartKafka(l.t.Context(), localstack.KafkaConfig{
		Brokers: brokers, SeparateController: brokers > 1, Advertise: addrs,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	started.Store(kafka)
	l.kafka = kafka
	l.closeLater(kafka.Close)
	l.env.Brokers = kafka.Addrs()
	return addrs
}

func (l *lab) closeLater(closing func() error) {
	l.t.Cleanup(func() {
		if err := closing(); err != nil {
			l.t.Error(err)
		}
	})
}

func (l *lab) proxy(target func() string) *proxy.Proxy {
	l.t.Helper()
	p, err := proxy.New(target)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { p.Close() })
	return p
}

// direct are the settings of a relay that no proxy spoils.
func (l *lab) direct() testenv.Settings {
	return testenv.Settings{"postgres.url": l.env.URL, "kafka.brokers": l.env.Brokers}
}

// load begins to write, and to sample the confirmed position.
func (l *lab) load() {
	l.loaded = time.Now()
	l.endLoad = l.check.Begin(l.t.Context())
	l.t.Cleanup(func() { _ = l.endLoad() })
}

// judge ends the writing, waits until everything is delivered, and returns the report. A fault in it fails the test.
func (l *lab) judge() checker.Report {
	l.t.Helper()
	wrote := time.Since(l.loaded)
	if err := l.endLoad(); err != nil {
		l.t.Error(err)
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), 3*time.Minute)
	defer cancel()
	report, err := l.check.Wait(ctx)
	if err != nil {
		l.t.Error(err)
	}
	l.say("%.0f rows a second committed; %s", float64(report.Committed)/wrote.Seconds(), report.String())
	if !report.OK() {
		l.t.Errorf("seed %d: the judge finds faults", *seed)
	}
	return report
}

// say prints a line with the time since the start of the lab.
func (l *lab) say(format string, args ...any) {
	l.t.Helper()
	l.t.Logf("%7.2fs %s", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...))
}

// between draws a duration.
func (l *lab) between(least, most time.Duration) time.Duration {
	return least + time.Duration(l.random.Int64N(int64(most-least)))
}

// times collects durations of each kind.
type times map[string][]time.Duration

func (t times) add(kind string, d time.Duration) { t[kind] = append(t[kind], d) }

// String gives the median and the longest of each kind.
func (t times) String() string {
	kinds := slices.Sorted(maps.Keys(t))
	width := 0
	for _, kind := range kinds {
		width = max(width, len(kind))
	}
	text := ""
	for _, kind := range kinds {
		all := slices.Sorted(slices.Values(t[kind]))
		text += fmt.Sprintf("\n  %-*s p50 %4d ms, max %4d ms, %d times",
			width, kind, all[len(all)/2].Milliseconds(), all[len(all)-1].Milliseconds(), len(all))
	}
	return text
}
