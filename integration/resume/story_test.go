package resume_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

const (
	partitions = 4
	keys       = 24
	// settledRows are confirmed before the crash; the transaction in whose middle the relay dies has rows more.
	settledRows, rows = 8, 300
	// crashAt is the answer to a batch at which the relay dies. Batches have a few rows each.
	crashAt = "produced:25"
)

// story is a relay that dies in the middle of a transaction and is started again.
type story struct {
	*scene.Scene
	t        *testing.T
	conn     *pgx.Conn
	topics   []string // those to read, the relay's first
	settings testenv.Settings
	after    string          // the end of the WAL after the transaction
	before   []record        // what is on the topics after the crash
	from     map[place]int64 // where what comes after the restart begins
	again    *testenv.Relay  // the relay after the restart
}

// newStory has a topic with some partitions, and nothing runs yet.
func newStory(t *testing.T, config ...string) *story {
	t.Helper()
	t.Parallel()
	s := &story{Scene: scene.New(t, kafka(t).Addrs()), t: t}
	s.conn = s.Conn()
	s.Exec(`ALTER TABLE public.outbox ADD COLUMN other text`)
	s.topics = []string{s.CreateTopic("order", partitions, config...)}
	s.settings = testenv.Settings{"kafka.max_message_bytes": "1KiB"}
	return s
}

// write commits rows in one transaction, whose ids go on from those before, and returns the end of the WAL right after.
func (s *story) write(n int) (after string) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), `INSERT INTO public.outbox (aggregatetype, aggregateid, payload, other)
		SELECT 'order', 'key-' || g % $1, 'payload', 'other' FROM generate_series(1, $2::int) g ORDER BY g`, keys, n); err != nil {
		s.t.Fatal(err)
	}
	if err := s.conn.QueryRow(s.t.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&after); err != nil {
		s.t.Fatal(err)
	}
	return after
}

// crash runs the relays until each has died in the middle of the transaction, and notes what they have left.
func (s *story) crash(more ...testenv.Settings) {
	s.t.Helper()
	var relays []*testenv.Relay
	for _, settings := range append([]testenv.Settings{nil}, more...) {
		r := s.StartRelay(testenv.RelayOptions{Settings: s.with(settings), Args: []string{"--init"}, CrashAt: crashAt})
		r.WaitReady(patience)
		relays = append(relays, r)
	}
	s.settled(s.write(settledRows))
	s.after = s.write(rows)
	for _, r := range relays {
		r.Wait(patience)
	}
	s.look()
	if n := len(s.before) - settledRows*len(relays); n <= 0 || n >= rows*len(relays) {
		s.t.Fatalf("%d of %d rows are on the topic: the crash is not in the middle", n, rows)
	}
}

// with are the story's settings with others over them.
func (s *story) with(more testenv.Settings) testenv.Settings {
	all := maps.Clone(s.settings)
	maps.Copy(all, more)
	return all
}

// settled waits until every slot of the database has reached what write has returned. The end of a commit may lie before
// the head of a new page, the next byte to insert behind it.
func (s *story) settled(after string) {
	s.t.Helper()
	testenv.Until(s.t, patience, func(ctx context.Context) error {
		var behind int
		err := s.conn.QueryRow(ctx, `SELECT count(*) FROM pg_replication_slots
			WHERE database = current_database() AND confirmed_flush_lsn < $1::pg_lsn - 40`, after).Scan(&behind)
		if err == nil && behind > 0 {
			err = fmt.Errorf("%d slots have not reached %s", behind, after)
		}
		return err
	})
}

// crashAgain has the relay start again and die at another point.
func (s *story) crashAgain(at string) {
	s.t.Helper()
	r := s.StartRelay(testenv.RelayOptions{Settings: s.settings, CrashAt: at})
	if code := r.Wait(patience); code != -1 {
		s.t.Fatalf("exit code %d, want a death by signal", code)
	}
	s.look()
}

// look notes what is on the topics once what the dead relay had sent has landed: once the topic has not grown for a
// while.
func (s *story) look() {
	s.t.Helper()
	var ends []int64
	since := time.Now()
	testenv.Until(s.t, patience, func(context.Context) error {
		if now := s.Ends(s.topics[0]); !slices.Equal(now, ends) {
			ends, since = now, time.Now()
		}
		if time.Since(since) < 300*time.Millisecond {
			return fmt.Errorf("the topic grows: %v", ends)
		}
		return nil
	})
	s.before = s.read(nil)
}

// restart starts the relay again and waits until the transaction is confirmed, and one more.
func (s *story) restart(more ...testenv.Settings) {
	s.t.Helper()
	s.from = map[place]int64{}
	for _, topic := range s.topics {
		for partition, end := range s.Ends(topic) {
			s.from[place{topic, int32(partition)}] = end
		}
	}
	s.again = s.Start(s.settings)
	for _, settings := range more {
		s.Start(s.with(settings))
	}
	s.settled(s.after)
	s.settled(s.write(keys))
}

// once fails the test unless the restart has sent exactly what was not there.
func (s *story) once() {
	s.t.Helper()
	s.judge(s.before, s.read(s.from), missing(s.before))
	there := float64(len(s.before) - settledRows)
	if skipped := scene.Metric(s.t, s.again, "cdc_relay_resume_rows_skipped_total"); skipped != there {
		s.t.Errorf("%v rows were skipped, want the %v that were there", skipped, there)
	}
	s.quiet()
}

// all fails the test unless the restart has sent the whole transaction.
func (s *story) all() {
	s.t.Helper()
	s.judge(nil, s.read(s.from), missing(nil))
	if skipped := scene.Metric(s.t, s.again, "cdc_relay_resume_rows_skipped_total"); skipped != 0 {
		s.t.Errorf("%v rows were skipped, want none", skipped)
	}
	s.quiet()
}

// quiet fails the test when the relay has raised an alarm.
func (s *story) quiet() {
	s.t.Helper()
	if strings.Contains(s.again.Output(), `"level":"ERROR"`) {
		s.t.Error("the relay complains")
	}
}

// missing are the ids of the rows not settled before the crash that are not among the records, up to the last that
// restart has written.
func missing(records []record) (ids []int) {
	there := map[int]bool{}
	for _, r := range records {
		there[r.id] = true
	}
	for id := settledRows + 1; id <= settledRows+rows+keys; id++ {
		if !there[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// judge fails the test unless after has exactly the wanted rows, each once, and first copies, which are in before or
// after, are in order for each key.
func (s *story) judge(before, after []record, want []int) {
	s.t.Helper()
	var got []int
	for _, r := range after {
		got = append(got, r.id)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		s.t.Errorf("after the restart: %d records of %d rows, want %d", len(got), len(slices.Compact(slices.Clone(got))), len(want))
		s.t.Logf("too few: %v\ntoo many: %v", less(want, got), less(got, want))
	}
	s.inOrder(before, after)
}

// inOrder fails the test unless the first copies of each key are in order.
func (s *story) inOrder(parts ...[]record) {
	s.t.Helper()
	last, seen := map[string]int{}, map[int]bool{}
	for _, r := range slices.Concat(parts...) {
		if !seen[r.id] && r.id < last[r.key] {
			s.t.Errorf("%v@%d: row %d of key %s comes after row %d", r.place, r.offset, r.id, r.key, last[r.key])
		}
		last[r.key], seen[r.id] = max(last[r.key], r.id), true
	}
}

// less is a without what is in b, each as often as it is there.
func less(a, b []int) (rest []int) {
	count := map[int]int{}
	for _, id := range b {
		count[id]++
	}
	for _, id := range a {
		if count[id]--; count[id] < 0 {
			rest = append(rest, id)
		}
	}
	return rest
}
