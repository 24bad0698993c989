// Package deadlettertest runs package deadletter against real servers.
package deadlettertest

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const patience = 20 * time.Second

// store is a database with all that a relay needs, and the slot that one streams from.
type store struct {
	*testenv.Env

	t         *testing.T
	db        *catalog.DB
	walsender uint32
	stream    *wal.Stream
}

// newStore sets a database up and streams from its slot.
func newStore(t *testing.T, opts ...testenv.Option) *store {
	t.Helper()
	s := &store{Env: testenv.New(t, append(opts, testenv.NoKafka())...), t: t}
	s.migrate()
	s.db = s.open(s.URL)
	setup := catalog.Setup{Slot: s.Slot, Publication: s.Publication, Tables: []catalog.TableName{{Schema: "public", Name: "outbox"}}}
	_, err := s.db.Init(t.Context(), setup, func(catalog.Statement) {})
	s.must(err)
	s.Exec("SELECT pg_create_logical_replication_slot($1, 'test_decoding')", s.reader())
	s.hold()
	return s
}

func (s *store) migrate() {
	s.t.Helper()
	conn, err := catalog.Connect(s.t.Context(), catalog.Config{ConnString: s.URL})
	s.must(err)
	defer conn.Close(context.Background())
	_, err = migrations.Up(s.t.Context(), conn, migrations.Options{Skip: []string{"publication"}})
	s.must(err)
}

func (s *store) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) open(url string) *catalog.DB {
	s.t.Helper()
	db, err := catalog.Open(s.t.Context(), catalog.Config{ConnString: url})
	s.must(err)
	s.t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

// reader is another slot, through which the test sees what is on the stream.
func (s *store) reader() string { return s.Slot + "_r" }

// hold streams from the slot without confirming anything.
func (s *store) hold() {
	s.t.Helper()
	conn, err := wal.Connect(s.t.Context(), wal.Config{
		URL: s.URL, Slot: s.Slot, Publications: []string{s.Publication},
		WALSenderTimeout: time.Minute, // nobody reads this stream while a large letter is written on a loaded machine
	})
	s.must(err)
	s.walsender = conn.PID()
	confirmed := func(ctx context.Context) (pglogrepl.LSN, error) {
		slot, _, err := s.db.Slot(ctx, s.Slot)
		return slot.Confirmed, err
	}
	s.stream, err = conn.Start(s.t.Context(), wal.StartOptions{Confirmed: confirmed})
	s.must(err)
	s.t.Cleanup(func() { _ = s.stream.Close() })
}

// letGo ends the stream and waits until the slot is free.
func (s *store) letGo() {
	s.t.Helper()
	_ = s.stream.Close()
	testenv.Until(s.t, patience, func(context.Context) error {
		if s.OfSlot("active") != "false" {
			return errors.New("the slot is still held")
		}
		return nil
	})
}

// messages are the logical messages on the stream so far, each as "prefix content".
func (s *store) messages() []string {
	s.t.Helper()
	const sql = `SELECT substring(data FROM 'transactional: 1 prefix: (.*), sz: ') || ' ' || substring(data FROM 'content:(.*)$')
		FROM pg_logical_slot_peek_changes($1, NULL, NULL) WHERE data LIKE 'message:%'`
	rows, err := s.Conn().Query(s.t.Context(), sql, s.reader())
	s.must(err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.must(err)
	return got
}

func (s *store) letter(index uint32) *deadletter.Letter {
	return &deadletter.Letter{
		Slot: s.Slot, SystemID: "42", Position: position.Position{Commit: 0x1_0000_0010, LSN: 0x1_0000_0008, Kind: position.Row, Index: index},
		Table: "public.outbox", MessageID: []byte("2f7f2b2e-0000-4000-8000-00000000000" + string(rune('0'+index%10))),
		Topic: "order", Key: []byte("k"), Value: []byte("v"), ValueBytes: 1, ValueKept: true,
		Headers: []deadletter.Header{{Name: "type", Value: []byte("OrderPlaced")}}, Type: "OrderPlaced",
		Reason: deadletter.TooLarge, Error: "too large", Attempts: 1, Marker: deadletter.NewMarker(),
	}
}

// put writes a letter that is not there yet, and returns its id.
func (s *store) put(l *deadletter.Letter) int64 {
	s.t.Helper()
	marker, err := deadletter.Put(s.t.Context(), s.db, s.walsender, l)
	if err != nil || marker != l.Marker {
		s.t.Fatalf("Put = %q, %v, want the marker %q", marker, err, l.Marker)
	}
	var id int64
	s.must(s.Conn().QueryRow(s.t.Context(), "SELECT id FROM public.cdc_relay_dead_letter WHERE marker = $1", marker).Scan(&id))
	return id
}

func (s *store) get(id int64) *deadletter.Letter {
	s.t.Helper()
	l, found, err := deadletter.Get(s.t.Context(), s.db, s.Slot, id)
	if err != nil || !found {
		s.t.Fatalf("Get = %v, %v", found, err)
	}
	return l
}

// replay replays letters that are dead.
func (s *store) replay(ids ...int64) {
	s.t.Helper()
	got, err := deadletter.Replay(s.t.Context(), s.db, ids, "")
	s.must(err)
	for _, r := range got {
		if !r.Replayed {
			s.t.Fatalf("letter %d is not replayed", r.ID)
		}
	}
}

// role makes a role that may do no more than log in, and returns its URL.
func (s *store) role(name string) (role, roleURL string) {
	s.t.Helper()
	role = s.Slot + "_" + name
	s.Exec("CREATE ROLE " + role + " LOGIN PASSWORD 'secret'")
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err := pgx.Connect(ctx, s.URL)
		if err != nil {
			return // the server is gone, and the role with it
		}
		defer conn.Close(ctx)
		_, _ = conn.PgConn().Exec(ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role).ReadAll()
	})
	u, err := url.Parse(s.URL)
	s.must(err)
	u.User = url.UserPassword(role, "secret")
	return role, u.String()
}

// wantFault wants a *catalog.CheckError of the class, whose text contains want, and
// returns its next step.
func wantFault(t *testing.T, err error, class catalog.Class, want string) (next string) {
	t.Helper()
	var e *catalog.CheckError
	if !errors.As(err, &e) || e.Class != class || e.Next == "" || !strings.Contains(err.Error(), want) {
		t.Fatalf("fault %v, want one of class %s with %q and a next step", err, class, want)
	}
	return e.Next
}

// ownServer starts a server for one test.
func ownServer(t *testing.T, settings map[string]string) *localstack.Postgres {
	t.Helper()
	pg, err := localstack.StartPostgres(t.Context(), localstack.PostgresConfig{Major: testenv.Major(), NoSync: true, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Close() })
	return pg
}

// waiting waits until a session of the database waits for a lock.
func (s *store) waiting() {
	s.t.Helper()
	testenv.Until(s.t, patience, func(context.Context) error {
		const sql = `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`
		if s.Text(sql) == "0" {
			return errors.New("nobody waits")
		}
		return nil
	})
}
