package deadlettertest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

func TestList(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var ids []int64
	for i := range uint32(6) {
		l := s.letter(i)
		if i%2 == 1 {
			l.Type, l.Topic, l.Key, l.Reason = "OrderPaid", "payment", []byte("k'%"), deadletter.Attempts
		}
		id := s.put(l)
		s.Exec("UPDATE public.cdc_relay_dead_letter SET created_at = $2 WHERE id = $1", id, base.Add(time.Duration(i)*time.Hour))
		ids = append(ids, id)
	}
	s.replay(ids[1])
	_, err := deadletter.Discard(ctx, s.db, ids[2:3])
	s.must(err)
	s.Exec("UPDATE public.cdc_relay_dead_letter SET slot = 'other' WHERE id = $1", ids[5])
	all := []int{0, 1, 2, 3, 4, 5}
	for name, c := range map[string]struct {
		filter deadletter.Filter
		want   []int
	}{
		"all":       {deadletter.Filter{}, all},
		"slot":      {deadletter.Filter{Owner: "other"}, []int{5}},
		"type":      {deadletter.Filter{Type: "OrderPaid"}, []int{1, 3, 5}},
		"topic":     {deadletter.Filter{Topic: "order"}, []int{0, 2, 4}},
		"aggregate": {deadletter.Filter{Aggregate: "k'%"}, []int{1, 3, 5}},
		"no like":   {deadletter.Filter{Aggregate: "%"}, nil},
		"reason":    {deadletter.Filter{Reason: deadletter.TooLarge}, []int{0, 2, 4}},
		"since":     {deadletter.Filter{Since: base.Add(4 * time.Hour)}, []int{4, 5}},
		"until":     {deadletter.Filter{Until: base.Add(2 * time.Hour)}, []int{0, 1}},
		"between":   {deadletter.Filter{Since: base.Add(time.Microsecond), Until: base.Add(2*time.Hour + time.Microsecond)}, []int{1, 2}},
		"message":   {deadletter.Filter{ID: string(s.letter(3).MessageID)}, []int{3}},
		"letters":   {deadletter.Filter{Letters: []int64{ids[4], ids[0], 1 << 40}}, []int{0, 4}},
		"dead":      {deadletter.Filter{States: []deadletter.State{deadletter.Dead}}, []int{0, 3, 4, 5}},
		"settled":   {deadletter.Filter{States: []deadletter.State{deadletter.Replayed, deadletter.Discarded}}, []int{1, 2}},
		"no state":  {deadletter.Filter{States: []deadletter.State{"x"}}, nil},
		"together": {deadletter.Filter{
			Owner: s.Slot, Type: "OrderPaid", Topic: "payment", Aggregate: "k'%", Reason: deadletter.Attempts, Since: base, Until: base.Add(9 * time.Hour),
			ID: string(s.letter(3).MessageID), Letters: ids, States: []deadletter.State{deadletter.Dead},
		}, []int{3}},
		"injected": {deadletter.Filter{Owner: "' OR true --", Topic: "$1"}, nil},
	} {
		var want, got []int64
		for _, i := range c.want {
			want = append(want, ids[i])
		}
		after := int64(0)
		for { // a page is two
			page, err := deadletter.List(ctx, s.db, c.filter, 2, after)
			s.must(err)
			if len(page) == 0 {
				break
			}
			for _, l := range page {
				got, after = append(got, l.ID), l.ID
			}
		}
		n, err := deadletter.Count(ctx, s.db, c.filter)
		if err != nil || !slices.Equal(got, want) || n != int64(len(want)) {
			t.Errorf("%s: %v, counted %d, %v, want %v", name, got, n, err, want)
		}
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	none, err := deadletter.Stats(ctx, s.db, "")
	if err != nil || len(none) != 0 {
		t.Errorf("Stats = %+v, %v, want none", none, err)
	}
	for i, reason := range []deadletter.Reason{deadletter.TooLarge, deadletter.TooLarge, deadletter.Attempts, deadletter.TooLarge, deadletter.TooLarge} {
		l := s.letter(uint32(i))
		l.Reason = reason
		id := s.put(l)
		s.Exec("UPDATE public.cdc_relay_dead_letter SET created_at = $2 WHERE id = $1", id, base.Add(time.Duration(9-i)*time.Hour))
		switch i {
		case 3:
			s.replay(id)
		case 4:
			s.Exec("UPDATE public.cdc_relay_dead_letter SET slot = '-' WHERE id = $1", id)
		}
	}
	attempts := deadletter.Stat{Owner: s.Slot, State: deadletter.Dead, Reason: deadletter.Attempts, Count: 1, Oldest: base.Add(7 * time.Hour)}
	large := deadletter.Stat{Owner: s.Slot, State: deadletter.Dead, Reason: deadletter.TooLarge, Count: 2, Oldest: base.Add(8 * time.Hour)}
	replayed := deadletter.Stat{Owner: s.Slot, State: deadletter.Replayed, Reason: deadletter.TooLarge, Count: 1, Oldest: base.Add(6 * time.Hour)}
	other := deadletter.Stat{Owner: "-", State: deadletter.Dead, Reason: deadletter.TooLarge, Count: 1, Oldest: base.Add(5 * time.Hour)}
	for name, c := range map[string]struct {
		slot   string
		states []deadletter.State
		want   []deadletter.Stat
	}{
		"all":      {"", nil, []deadletter.Stat{other, attempts, large, replayed}},
		"slot":     {s.Slot, nil, []deadletter.Stat{attempts, large, replayed}},
		"dead":     {s.Slot, []deadletter.State{deadletter.Dead}, []deadletter.Stat{attempts, large}},
		"replayed": {"", []deadletter.State{deadletter.Replayed}, []deadletter.Stat{replayed}},
	} {
		got, err := deadletter.Stats(ctx, s.db, c.slot, c.states...)
		slices.SortFunc(got, func(a, b deadletter.Stat) int {
			return strings.Compare(fmt.Sprint(a.Owner != "-", a.Owner, a.State, a.Reason), fmt.Sprint(b.Owner != "-", b.Owner, b.State, b.Reason))
		})
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// The metrics are read every few seconds: from an index, however many letters were
// replayed long ago.
func TestStatsOfTheDeadAreCheap(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.Exec(`INSERT INTO public.cdc_relay_dead_letter (slot, system_id, commit_lsn, change_lsn, kind, index, state, value, value_kept,
		reason, error, attempts, may_be_published, ordinal, marker, changed_lsn)
		SELECT $1, '42', '0/1', '0/1', 'r', n, CASE WHEN n % 1000 = 0 THEN 'dead' ELSE 'replayed' END, convert_to(repeat('x', 500), 'UTF8'), true,
		'too_large', '', 1, false, n, '', '0/1' FROM generate_series(1, 20000) n`, s.Slot)
	s.Exec("VACUUM ANALYZE public.cdc_relay_dead_letter")
	scans := func(index string) string {
		s.Exec("SELECT pg_stat_clear_snapshot()")
		return s.Text("SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = $1", index)
	}
	before := scans("cdc_relay_dead_letter_dead")
	db := s.open(s.URL)
	got, err := deadletter.Stats(t.Context(), db, s.Slot, deadletter.Dead)
	if err != nil || len(got) != 1 || got[0].Count != 20 {
		t.Fatalf("Stats = %+v, %v", got, err)
	}
	s.must(db.Close(t.Context())) // which has the session tell what it has counted
	waitFor(t, func() bool { return scans("cdc_relay_dead_letter_dead") != before }, "the index of dead letters is not used")
}
