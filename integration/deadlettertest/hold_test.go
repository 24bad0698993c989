package deadlettertest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// A role that may do no more than log in can hold every advisory lock there is, and keeps no
// relay from its dead letters.
func TestStrangerHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, url := s.role("stranger")
	stranger, err := pgx.Connect(t.Context(), url)
	s.must(err)
	defer stranger.Close(context.Background())
	_, err = stranger.Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended(k || $1, 0)), pg_advisory_lock(hashtext(k || $1))
		FROM unnest(ARRAY['', 'public.cdc_relay_dead_letter ', 'cdc_relay_dead_letter ']) k`, s.Slot)
	s.must(err)
	id := s.put(s.letter(0))
	if held, err := deadletter.Load(t.Context(), s.db, s.Slot, "42", 0); err != nil || len(held) != 1 {
		t.Errorf("Load = %v, %v, want one", held, err)
	}
	s.replay(id)
	back := s.letter(0)
	back.ID, back.Replays = id, 1
	if _, err := deadletter.PutBack(t.Context(), s.db, s.walsender, back); err != nil {
		t.Error(err)
	}
}

// The relay's own note of its position, which may be under way, does not hold up a dead letter.
func TestNoteOfThePositionHoldsUpNoLetter(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	note, err := s.Conn().Begin(t.Context())
	s.must(err)
	defer note.Rollback(context.Background()) //nolint:errcheck // only lets the lock go
	_, err = note.Exec(t.Context(), "UPDATE public.cdc_relay_slots SET confirmed = confirmed WHERE slot = $1", s.Slot)
	s.must(err)
	s.put(s.letter(0))
}

// Headers and a key take their time on the line like a value does.
func TestLargeHeadersTakeTheirTime(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	db, err := catalog.Open(t.Context(), catalog.Config{ConnString: s.URL, StatementTimeout: 100 * time.Millisecond})
	s.must(err)
	defer db.Close(context.Background())
	l := s.letter(0)
	l.Key = bytes.Repeat([]byte("k"), 2<<20)
	l.Headers = []deadletter.Header{{Name: "h", Value: bytes.Repeat([]byte("v"), 42<<20)}}
	if _, err := deadletter.Put(t.Context(), db, s.walsender, l); err != nil {
		t.Error(err)
	}
}
