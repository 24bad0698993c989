package scene

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Letter is a dead letter as the table has it, without its headers. A topic, type or error that is NULL is "".
type Letter struct {
	ID                                        int64
	State, Reason, Error, Topic, Source, Type string
	MessageID, Key, Value                     []byte
	ValueBytes                                int64 // -1 for a NULL value
	Kept                                      bool
	Attempts, Replays                         int
	MayBePublished                            bool
	RecordTime                                time.Time
}

// Letters returns the dead letters of the scene's slot, in the order of their rows.
func (s *Scene) Letters() []Letter {
	s.t.Helper()
	rows, err := s.conn.Query(s.t.Context(), `SELECT id, state, reason, coalesce(error, ''), coalesce(topic, ''),
			source_table, coalesce(type, ''), message_id, record_key, value, coalesce(value_bytes, -1), value_kept,
			attempts, replays, may_be_published, coalesce(record_time, 'epoch')
		FROM public.cdc_relay_dead_letter WHERE slot = $1 ORDER BY commit_lsn, change_lsn, kind, index`, s.Slot)
	if err != nil {
		s.t.Fatal(err)
	}
	letters, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Letter])
	if err != nil {
		s.t.Fatal(err)
	}
	return letters
}

// WaitLetters waits until the slot has exactly n dead letters in the state, of any with "", and returns those.
func (s *Scene) WaitLetters(state string, n int) (in []Letter) {
	s.t.Helper()
	testenv.Until(s.t, Patience, func(context.Context) error {
		in = in[:0]
		for _, l := range s.Letters() {
			if state == "" || l.State == state {
				in = append(in, l)
			}
		}
		if len(in) != n {
			return fmt.Errorf("%d dead letters, want %d: %+v", len(in), n, in)
		}
		return nil
	})
	return in
}

// Replay gives the dead letters back to the relay, with the SQL that is there for everybody, and returns the end of the
// WAL right after, as Insert does.
func (s *Scene) Replay(ids ...int64) (after string) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), `SELECT public.cdc_relay_dead_letter_replay($1::bigint[])`, ids); err != nil {
		s.t.Fatal(err)
	}
	return s.Text(`SELECT pg_current_wal_insert_lsn()`)
}
