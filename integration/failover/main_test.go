// Package failover_test moves a relay from one PostgreSQL server to another, and has servers come back, go back in time,
// and stop. Every test has servers of its own.
package failover_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) {
	testenv.Parallel(2) // A test runs up to three servers and a relay.
	os.Exit(testenv.Main(m))
}

const (
	patience = 60 * time.Second
	// partitions of the topic.
	partitions = 3
)

// site is an outbox on servers of the test's own, the topic that its rows go to, and the relay between them.
type site struct {
	*testenv.Env

	t       *testing.T
	primary *localstack.Postgres // the one that takes rows
	topic   string
	relay   *testenv.Relay
	behind  atomic.Pointer[localstack.Postgres] // the proxy of through, which serves while the test goes on
}

// newSite starts a server and sets it up for the relay. Settings are those of the server.
func newSite(t *testing.T, major int, settings map[string]string) *site {
	t.Helper()
	pg, err := localstack.StartPostgres(t.Context(), localstack.PostgresConfig{Major: major, NoSync: true, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, pg)
	s := &site{Env: testenv.New(t, testenv.OnPostgres(pg)), t: t, primary: pg}
	s.topic = s.CreateTopic("order", partitions)
	s.init()
	return s
}

func closeAtEnd(t *testing.T, pg *localstack.Postgres) {
	t.Cleanup(func() {
		if err := pg.Close(); err != nil {
			t.Error(err)
		}
	})
}

// must fails the test when a step of its own has failed.
func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// init runs "cdc-relay init ARGS" and returns what it prints.
func (s *site) init(args ...string) string {
	s.t.Helper()
	res := s.Run(append([]string{"init", "--config", s.WriteConfig(nil)}, args...)...)
	if res.Code != 0 {
		s.t.Fatalf("init exits with %d: %s", res.Code, res.Stderr)
	}
	return res.Stdout
}

// addStandby starts a standby of the primary. From then on clients look for the one of all servers that takes rows.
func (s *site) addStandby(slot string, settings map[string]string) *localstack.Postgres {
	s.t.Helper()
	standby, err := s.primary.StartStandby(s.t.Context(), localstack.StandbyConfig{Slot: slot, Settings: settings})
	s.must(err)
	closeAtEnd(s.t, standby)
	u, err := url.Parse(s.URL)
	s.must(err)
	u.Host += "," + standby.Addr()
	query := u.Query()
	query.Set("target_session_attrs", "read-write")
	u.RawQuery = query.Encode()
	s.URL = u.String()
	return standby
}

// urlOf leads to one server alone.
func (s *site) urlOf(pg *localstack.Postgres) string { return pg.URL(s.Slot) }

// start runs the relay and waits until it streams.
func (s *site) start(settings testenv.Settings) {
	s.t.Helper()
	s.launch(settings)
	s.relay.WaitReady(patience)
}

// launch runs the relay.
func (s *site) launch(settings testenv.Settings) {
	s.t.Helper()
	all := testenv.Settings{"postgres.wal_sender_timeout": "3s"}
	maps.Copy(all, settings)
	s.relay = s.StartRelay(testenv.RelayOptions{Settings: all})
}

// stop ends the relay cleanly.
func (s *site) stop() {
	s.t.Helper()
	if code := s.relay.Stop(patience); code != 0 {
		s.t.Errorf("the relay exits with %d after SIGTERM, want 0", code)
	}
}

// insertSQL writes rows of several keys.
const insertSQL = `INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
	SELECT 'order', 'key-' || g % 11, 'T', jsonb_build_object('filler', repeat('x', 100)) FROM generate_series(1, $1::int) g`

// insert commits so many transactions of five rows each.
func (s *site) insert(transactions int) {
	s.t.Helper()
	ctx := s.t.Context()
	conn, err := pgx.Connect(ctx, s.URL)
	s.must(err)
	defer conn.Close(context.WithoutCancel(ctx))
	for range transactions {
		_, err := conn.Exec(ctx, insertSQL, 5)
		s.must(err)
	}
}

// load writes until end is called, by one connection at a time, through whatever server takes rows.
func (s *site) load() (end func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = s.writeUntilBroken(ctx) // What is committed is asked of the table.
			_ = testenv.Pause(ctx, 20*time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// writeUntilBroken writes over one connection. A transaction that has begun is not broken off by the end of ctx: it
// could still be committed after the table has been looked at.
func (s *site) writeUntilBroken(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return err
	}
	farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	defer conn.Close(farewell)
	for rows := 1; ctx.Err() == nil; rows = rows%9 + 1 {
		if _, err := conn.Exec(farewell, insertSQL, rows); err != nil {
			return err
		}
		_ = testenv.Pause(ctx, 5*time.Millisecond)
	}
	return nil
}

// becomes waits until a query on one server yields the value.
func (s *site) becomes(pg *localstack.Postgres, want, sql string, args ...any) {
	s.t.Helper()
	testenv.Until(s.t, patience, func(ctx context.Context) error {
		got, err := testenv.TextAt(ctx, s.urlOf(pg), sql, args...)
		if err == nil && got != want {
			err = fmt.Errorf("%s is %q, want %q", sql, got, want)
		}
		return err
	})
}

// slot reads a column of the relay's slot from the server that takes rows.
func (s *site) slot(column string) string {
	s.t.Helper()
	return s.Text(`SELECT `+column+` FROM pg_replication_slots WHERE slot_name = $1`, s.Slot)
}

// says waits until /readyz answers 503 with every text and returns the answer.
func (s *site) says(limit time.Duration, want ...string) (body string) {
	s.t.Helper()
	testenv.Until(s.t, limit, func(ctx context.Context) error {
		status, text, err := s.relay.Get(ctx, "/readyz?verbose")
		for _, w := range want {
			if err == nil && (status != 503 || !strings.Contains(text, w)) {
				err = fmt.Errorf("/readyz answers %d %q, want 503 with %q", status, text, w)
			}
		}
		body = text
		return err
	})
	return body
}

// moreRows waits until the relay has read so many more rows.
func (s *site) moreRows(n float64) {
	s.t.Helper()
	const name = "cdc_relay_messages_received_total"
	before := scene.Metric(s.t, s.relay, name)
	testenv.Until(s.t, patience, func(context.Context) error {
		if got := scene.Metric(s.t, s.relay, name) - before; got < n {
			return fmt.Errorf("%v of %v rows", got, n)
		}
		return nil
	})
}

// execAt runs a statement on one server.
func execAt(ctx context.Context, connString, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, connString)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql, args...)
	return err
}
