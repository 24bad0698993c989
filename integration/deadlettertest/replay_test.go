package deadlettertest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// What is replayed is marked, and the relay is told by id and number alone, in the order
// of the ids; a second time it is not dead any more.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	var ids []int64
	for i := range uint32(4) {
		ids = append(ids, s.put(s.letter(i)))
	}
	markers := s.messages()
	got, err := deadletter.Replay(ctx, s.db, []int64{ids[2], 1 << 40, ids[0], ids[2]}, "elsewhere")
	s.must(err)
	var end string
	for i, want := range []struct {
		id       int64
		replayed bool
	}{{ids[0], true}, {ids[2], true}, {1 << 40, false}} {
		if len(got) != 3 || got[i].ID != want.id || got[i].Replayed != want.replayed || (got[i].LSN != 0) != want.replayed {
			t.Fatalf("Replay = %+v", got)
		}
		if want.replayed {
			end = got[i].LSN.String()
		}
	}
	wantMessages := append(markers, fmt.Sprintf("cdc-relay/replay %d 1", ids[0]), fmt.Sprintf("cdc-relay/replay %d 1", ids[2]))
	if got := s.messages(); !slices.Equal(got, wantMessages) {
		t.Errorf("messages %q, want %q", got, wantMessages)
	}
	// The slot has passed the replay when it has passed that position.
	const commits = `SELECT count(*) FROM pg_logical_slot_peek_changes($1, $2, NULL) WHERE data LIKE 'message: % cdc-relay/replay%'`
	if n := s.Text(commits, s.reader(), end); n != "2" {
		t.Errorf("%s messages before %s, want 2", n, end)
	}
	l := s.get(ids[0])
	if l.State != deadletter.Replayed || l.Replays != 1 || l.ReplayTopic != "elsewhere" || l.Topic != "order" || string(l.Value) != "v" || !l.Changed.After(l.Created) {
		t.Errorf("letter %+v", l)
	}
	if l := s.get(ids[1]); l.State != deadletter.Dead || l.Replays != 0 || l.ReplayTopic != "" {
		t.Errorf("letter %+v, want it untouched", l)
	}
	again, err := deadletter.Replay(ctx, s.db, ids[:1], "")
	if want := []deadletter.ReplayResult{{ID: ids[0]}}; err != nil || !reflect.DeepEqual(again, want) {
		t.Errorf("a second Replay = %+v, %v, want %+v", again, err, want)
	}
	n, err := deadletter.Discard(ctx, s.db, []int64{ids[0], ids[1], 1 << 40})
	if err != nil || n != 1 || s.get(ids[0]).State != deadletter.Replayed || s.get(ids[1]).State != deadletter.Discarded {
		t.Errorf("Discard = %d, %v", n, err)
	}
	again, err = deadletter.Replay(ctx, s.db, ids[1:2], "")
	if err != nil || again[0].Replayed {
		t.Errorf("Replay of a discarded letter = %+v, %v", again, err)
	}
	if got := s.messages(); !slices.Equal(got, wantMessages) {
		t.Errorf("messages %q, want no more than %q", got, wantMessages)
	}
	if none, err := deadletter.Replay(ctx, s.db, nil, ""); err != nil || len(none) != 0 {
		t.Errorf("Replay of nothing = %+v, %v", none, err)
	}
}

// Of two who replay the same letters one does, and one message is written for each.
func TestReplayByTwo(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var ids []int64
	for i := range uint32(20) {
		ids = append(ids, s.put(s.letter(i)))
	}
	before := len(s.messages())
	holder, err := s.Conn().Begin(t.Context())
	s.must(err)
	_, err = holder.Exec(t.Context(), "SELECT FROM public.cdc_relay_dead_letter WHERE id = $1 FOR UPDATE", ids[10])
	s.must(err)
	type answer struct {
		results []deadletter.ReplayResult
		err     error
	}
	answers := make(chan answer, 2)
	backwards := slices.Clone(ids)
	slices.Reverse(backwards)
	for _, order := range [][]int64{ids, backwards} {
		db := s.open(s.URL)
		go func() {
			results, err := deadletter.Replay(t.Context(), db, order, "")
			answers <- answer{results, err}
		}()
	}
	testenv.Until(t, patience, func(context.Context) error {
		if s.Text(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) != "2" {
			return errors.New("they do not wait")
		}
		return nil
	})
	s.must(holder.Commit(t.Context()))
	replayed := 0
	for range 2 {
		a := <-answers
		s.must(a.err)
		for _, r := range a.results {
			if r.Replayed {
				replayed++
			}
		}
	}
	if n := len(s.messages()) - before; replayed != len(ids) || n != len(ids) {
		t.Errorf("%d replayed, %d messages, want %d of each", replayed, n, len(ids))
	}
}

// The stream can bring the message before the replay that wrote it can be seen: a commit
// is sent once it is in the log. Whoever must know waits for it.
func TestSettled(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	id := s.put(s.letter(0))
	tx, err := s.Conn().Begin(ctx)
	s.must(err)
	_, err = tx.Exec(ctx, "SELECT FROM public.cdc_relay_dead_letter_replay(ARRAY[$1::bigint])", id)
	s.must(err)
	if l := s.get(id); l.State != deadletter.Dead {
		t.Errorf("letter %+v before the commit", l)
	}
	type answer struct {
		letter *deadletter.Letter
		found  bool
		err    error
	}
	answers := make(chan answer, 1)
	db := s.open(s.URL)
	go func() {
		l, found, err := deadletter.Settled(ctx, db, s.Slot, id)
		answers <- answer{l, found, err}
	}()
	waitFor(t, func() bool {
		return s.Text(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == "1"
	}, "nobody waits")
	s.must(tx.Commit(ctx))
	if a := <-answers; a.err != nil || !a.found || a.letter.State != deadletter.Replayed || a.letter.Replays != 1 {
		t.Errorf("Settled = %+v, want the letter replayed", a)
	}
	if _, found, err := deadletter.Settled(ctx, s.db, "another", id); found || err != nil {
		t.Errorf("Settled of another slot = %v, %v", found, err)
	}
}

// Nobody would ever read the message of a slot that is gone.
func TestReplayWithoutSlot(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	here, gone := s.put(s.letter(0)), s.put(s.letter(1))
	s.Exec("UPDATE public.cdc_relay_dead_letter SET slot = 'gone' WHERE id = $1", gone)
	_, err := deadletter.Replay(t.Context(), s.db, []int64{here, gone}, "")
	wantFault(t, err, catalog.Unexpected, "slot gone, which does not exist")
	if l := s.get(here); l.State != deadletter.Dead || l.Replays != 0 {
		t.Errorf("letter %+v, want that nothing is replayed", l)
	}
}

// A refused replay makes the letter dead again, once, and is followed by a marker.
func TestPutBack(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	first := s.letter(0)
	first.Attempts, first.FirstFailed, first.LastFailed = 3, time.Unix(1000, 0).UTC(), time.Unix(2000, 0).UTC()
	id := s.put(first)
	s.replay(id)
	refusal := &deadletter.Letter{
		ID: id, Slot: s.Slot, Replays: 1, Reason: deadletter.UnknownTopic, Error: "no\ntopic", Attempts: 2,
		LastFailed: time.Unix(3000, 0).UTC(), MayBePublished: true, Marker: deadletter.NewMarker(),
	}
	marker, err := deadletter.PutBack(ctx, s.db, s.walsender, refusal)
	if err != nil || marker != refusal.Marker {
		t.Fatalf("PutBack = %q, %v, want %q", marker, err, refusal.Marker)
	}
	want := *first
	want.ID, want.State, want.Reason, want.Error, want.Attempts, want.LastFailed = id, deadletter.Dead, deadletter.UnknownTopic, "no topic", 5, refusal.LastFailed
	want.MayBePublished, want.Replays, want.ReplayMarker = true, 1, refusal.Marker
	check := func() {
		t.Helper()
		got := s.get(id)
		want.Created, want.Changed = got.Created, got.Changed
		wantSame(t, "put back", *got, want)
	}
	check()
	messages := s.messages()
	if got := messages[len(messages)-1]; got != deadletter.MarkerPrefix+" "+refusal.Marker {
		t.Errorf("last message %q, want the marker %q", got, refusal.Marker)
	}

	again := *refusal
	again.Marker, again.Attempts = deadletter.NewMarker(), 9
	if marker, err := deadletter.PutBack(ctx, s.db, s.walsender, &again); err != nil || marker != refusal.Marker {
		t.Errorf("a second PutBack = %q, %v, want %q", marker, err, refusal.Marker)
	}
	check()
	_, err = deadletter.Discard(ctx, s.db, []int64{id})
	s.must(err)
	if marker, err := deadletter.PutBack(ctx, s.db, s.walsender, &again); err != nil || marker != refusal.Marker {
		t.Errorf("PutBack after Discard = %q, %v, want %q", marker, err, refusal.Marker)
	}
	if got := s.messages(); len(got) != len(messages) {
		t.Errorf("messages %q, want %q", got, messages)
	}
	s.Exec("UPDATE public.cdc_relay_dead_letter SET state = 'dead'")

	// Another replay is none of the first one's business, but its caller has a marker to wait for.
	s.replay(id)
	want.State, want.Replays, want.ReplayMarker = deadletter.Replayed, 2, ""
	marker, err = deadletter.PutBack(ctx, s.db, s.walsender, &again)
	if err != nil || marker != again.Marker {
		t.Errorf("PutBack of an old replay = %q, %v, want %q", marker, err, again.Marker)
	}
	check()
	messages = s.messages()
	if got := messages[len(messages)-1]; got != deadletter.MarkerPrefix+" "+again.Marker {
		t.Errorf("last message %q, want the marker %q", got, again.Marker)
	}
	foreign := again
	foreign.Slot, foreign.Replays = "other", 2
	if _, err := deadletter.PutBack(ctx, s.db, s.walsender, &foreign); !errors.Is(err, catalog.ErrNotHolder) {
		t.Errorf("PutBack for another slot = %v", err)
	}
	check()
}

// Only what can never come by again is deleted.
func TestPurge(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	ids := map[string]int64{}
	for i, name := range []string{"dead", "replayed", "discarded", "row ahead", "replay ahead", "late"} {
		ids[name] = s.put(s.letter(uint32(i)))
	}
	s.letGo() // Else a checkpoint of another test moves the slot on.
	restart := s.OfSlot("restart_lsn")
	s.Exec("UPDATE public.cdc_relay_dead_letter SET commit_lsn = '0/1', changed_lsn = '0/2', changed_at = now() - interval '2 days', state = 'discarded'")
	s.Exec("UPDATE public.cdc_relay_dead_letter SET state = 'dead' WHERE id = $1", ids["dead"])
	s.Exec("UPDATE public.cdc_relay_dead_letter SET state = 'replayed' WHERE id = $1", ids["replayed"])
	s.Exec("UPDATE public.cdc_relay_dead_letter SET commit_lsn = $2::text::pg_lsn WHERE id = $1", ids["row ahead"], restart)
	s.Exec("UPDATE public.cdc_relay_dead_letter SET changed_lsn = $2::text::pg_lsn WHERE id = $1", ids["replay ahead"], restart)
	s.Exec("UPDATE public.cdc_relay_dead_letter SET changed_at = now() WHERE id = $1", ids["late"])
	yesterday := time.Now().Add(-24 * time.Hour)
	purge := func(slot string, limit int, want int64, left ...string) {
		t.Helper()
		n, err := deadletter.Purge(ctx, s.db, slot, yesterday, limit)
		if err != nil || n != want {
			t.Errorf("Purge of slot %q = %d, %v, want %d", slot, n, err, want)
		}
		list, err := deadletter.List(ctx, s.db, deadletter.Filter{}, 100, 0)
		s.must(err)
		var got, wanted []int64
		for _, l := range list {
			got = append(got, l.ID)
		}
		for _, name := range left {
			wanted = append(wanted, ids[name])
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("left are %v, want %v of %v", got, wanted, ids)
		}
	}
	purge("other", 100, 0, "dead", "replayed", "discarded", "row ahead", "replay ahead", "late")
	purge(s.Slot, 1, 1, "dead", "discarded", "row ahead", "replay ahead", "late")
	purge("", 100, 1, "dead", "row ahead", "replay ahead", "late")
	purge("", 100, 0, "dead", "row ahead", "replay ahead", "late")
	// The slot goes, and nothing can come by.
	s.Exec("SELECT pg_drop_replication_slot($1)", s.Slot)
	purge(s.Slot, 100, 2, "dead", "late")
}

// Once the slot has gone on, the position that it starts from has, too.
func TestPurgeFollowsTheSlot(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	id := s.put(s.letter(0))
	s.Exec("UPDATE public.cdc_relay_dead_letter SET commit_lsn = changed_lsn")
	s.replay(id)
	soon := time.Now().Add(time.Hour)
	if n, err := deadletter.Purge(t.Context(), s.db, s.Slot, soon, 10); err != nil || n != 0 {
		t.Fatalf("Purge = %d, %v, though the slot has not seen the replay", n, err)
	}
	s.letGo()
	testenv.Until(t, patience, func(ctx context.Context) error {
		// A slot's restart position moves when it passes a snapshot of running transactions.
		s.Exec("CHECKPOINT")
		s.Exec("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", s.Slot)
		n, err := deadletter.Purge(ctx, s.db, s.Slot, soon, 10)
		if err == nil && n != 1 {
			err = errors.New("it is still there")
		}
		return err
	})
}

// What is read ahead is of the replays since a position, from a number on, and not large.
func TestAhead(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var ids []int64
	for i := range uint32(6) {
		l := s.letter(i)
		switch i {
		case 3:
			l.Value = make([]byte, 1<<20)
			l.ValueBytes = int64(len(l.Value))
		case 4:
			l.Value, l.ValueKept = nil, false
		case 5:
			l.Value, l.ValueBytes = nil, -1
		}
		ids = append(ids, s.put(l))
	}
	s.replay(ids[0], ids[5])
	from, err := pglogrepl.ParseLSN(s.Text(`SELECT pg_current_wal_insert_lsn()`))
	s.must(err)
	s.replay(ids[1], ids[3], ids[4])
	ahead := func(id int64, since pglogrepl.LSN) (got []int64) {
		t.Helper()
		found, err := deadletter.Ahead(t.Context(), s.db, s.Slot, id, since)
		s.must(err)
		for _, l := range found {
			if want := s.get(l.ID); !reflect.DeepEqual(l, want) {
				t.Errorf("letter %+v, want %+v", l, want)
			}
			got = append(got, l.ID)
		}
		return got
	}
	for _, c := range []struct {
		id    int64
		since pglogrepl.LSN
		want  []int64
	}{
		{ids[0], 0, []int64{ids[0], ids[1], ids[5]}},
		{ids[1], 0, []int64{ids[1], ids[5]}},
		{ids[0], from, []int64{ids[1]}},
		{ids[2], from, nil},
	} {
		if got := ahead(c.id, c.since); !slices.Equal(got, c.want) {
			t.Errorf("ahead from %d since %s: %v, want %v", c.id, c.since, got, c.want)
		}
	}
}
