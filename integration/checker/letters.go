package checker

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// replayHeader is the header that says which replay of its dead letter a record is.
const replayHeader = "cdc-relay-replay"

// identity tells dead letters apart. A number alone does not: a server that takes over, or that has crashed, may give
// one again that it does not know to be used.
type identity struct {
	id      int64
	message string
	created int64 // microseconds, by the server's clock
}

// letter is a dead letter as the table has it.
type letter struct {
	identity
	commit         uint64
	state          string
	reason         string
	replays        int
	mayBePublished bool

	// What follows is read when the letter is seen for the first time.
	event   event  // without its padding
	problem string // what is wrong with it, if anything is
}

func (l *letter) String() string {
	return fmt.Sprintf("dead letter %d (%s), key %s number %d", l.id, l.reason, l.event.Key, l.event.Number)
}

// readLetters reads what the table of dead letters has for the slot. Without the table there are none.
func (c *Checker) readLetters(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.cfg.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var there bool
	if err := conn.QueryRow(ctx, `SELECT to_regclass('public.cdc_relay_dead_letter') IS NOT NULL`).Scan(&there); err != nil || !there {
		return err
	}
	rows, err := conn.Query(ctx, `SELECT id, coalesce(convert_from(message_id, 'UTF8'), ''),
		(extract(epoch FROM created_at) * 1000000)::bigint, (commit_lsn - '0/0'::pg_lsn)::bigint, state, reason, replays, may_be_published
		FROM public.cdc_relay_dead_letter WHERE slot = $1 ORDER BY id`, c.cfg.Slot)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*letter, error) {
		l := &letter{}
		return l, row.Scan(&l.id, &l.message, &l.created, &l.commit, &l.state, &l.reason, &l.replays, &l.mayBePublished)
	})
	if err != nil {
		return err
	}
	const most = 200 // values at once
	for unknown := c.unknown(found); len(unknown) > 0; {
		n := min(most, len(unknown))
		if err := readContents(ctx, conn, unknown[:n]); err != nil {
			return err
		}
		unknown = unknown[n:]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.hold(found)
	return nil
}

// unknown returns the letters that have not been seen before.
func (c *Checker) unknown(found []*letter) (unknown []*letter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range found {
		if c.seen.letters[l.identity] == nil {
			unknown = append(unknown, l)
		}
	}
	return unknown
}

// readContents reads key and value of letters, and compares them with what was written.
func readContents(ctx context.Context, conn *pgx.Conn, letters []*letter) error {
	byID := map[int64]*letter{}
	ids := make([]int64, 0, len(letters))
	for _, l := range letters {
		byID[l.id] = l
		ids = append(ids, l.id)
	}
	rows, err := conn.Query(ctx, `SELECT id, record_key, value FROM public.cdc_relay_dead_letter WHERE id = ANY($1)`, ids)
	if err != nil {
		return err
	}
	var id int64
	var key, value []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &value}, func() error {
		byID[id].open(key, value)
		return nil
	})
	return err
}

// open finds out of which event a letter is.
func (l *letter) open(key, value []byte) {
	e, intact := parseEvent(value)
	e.Padding = ""
	l.event = e
	switch {
	case !intact || string(key) != e.Key || l.message != e.ID:
		l.problem = "content is not as written"
	case e.RolledBack:
		l.problem = "rolled back"
	case !e.Poison:
		l.problem = "nothing is wrong with the row"
	}
}

// hold takes the letters that the table has now.
func (l *ledger) hold(found []*letter) {
	before := l.letters
	l.letters = make(map[identity]*letter, len(found))
	for _, now := range found {
		if known := before[now.identity]; known != nil {
			now.event, now.problem = known.event, known.problem
		}
		l.letters[now.identity] = now
	}
	for at, was := range before {
		if l.letters[at] == nil {
			if was.event.Number > 0 {
				l.gone = append(l.gone, was)
			}
			if h := l.of(was.event.Key); h.dead[was.event.Number] != nil && h.dead[was.event.Number].identity == at {
				delete(h.dead, was.event.Number)
			}
		}
	}
	for _, now := range found {
		l.place(now, before[now.identity] != nil)
	}
}

// place puts a letter among the events of its key.
func (l *ledger) place(now *letter, known bool) {
	number := now.event.Number
	if number == 0 {
		return // It is of no event at all.
	}
	h := l.of(now.event.Key)
	if other := h.dead[number]; other != nil && other.identity != now.identity {
		if now.problem == "" {
			now.problem = fmt.Sprintf("letter %d is of the same event", other.id)
		}
		return
	}
	h.dead[number] = now
	h.advance()
	if _, there := h.first[number]; !there && !known {
		l.arrived(now.event, now.commit)
	}
}

// lost returns the letters that were in the table, are not any more, and whose events are nowhere else.
func (l *ledger) lost() (lost []*letter) {
	for _, g := range l.gone {
		if !l.of(g.event.Key).has(g.event.Number) {
			lost = append(lost, g)
		}
	}
	return lost
}

// unsent returns the letters that were replayed and whose replay is on no topic.
func (l *ledger) unsent() (unsent []*letter) {
	for _, now := range l.letters {
		if now.state == "replayed" {
			if _, there := l.of(now.event.Key).replayed[replay{now.event.Number, now.replays}]; !there {
				unsent = append(unsent, now)
			}
		}
	}
	return unsent
}

// replayed enters a record that a replay has brought. It may be on another topic than the others of its key.
func (l *ledger) replayed(h *history, e event, r record) {
	which := replay{number: e.Number, count: r.replay}
	if first, known := h.replayed[which]; known {
		l.repeated(first, e, r)
		return
	}
	h.replayed[which] = copied{place: r.place, origin: r.origin, offset: r.offset, id: e.ID}
}

// replays returns how many replays have brought a record.
func (l *ledger) replays() (n int) {
	for _, h := range l.keys {
		n += len(h.replayed)
	}
	return n
}

// judgeLetters compares the dead letters with the topics.
func judgeLetters(r *Report, counters map[string]int64, seen *ledger) {
	more := ledger{}
	r.Letters, r.Replayed = len(seen.letters), seen.replays()
	for _, l := range seen.letters {
		problem := l.problem
		if problem == "" && l.event.Number > counters[l.event.Key] {
			problem = "never committed"
		}
		if problem != "" {
			more.fault(&r.Wrongful, "wrongful", "%v: %s", l, problem)
		}
	}
	missing := 0
	for _, l := range seen.lost() {
		more.fault(&missing, "lost", "%v: it is not there any more", l)
	}
	for _, l := range seen.unsent() {
		more.fault(&missing, "unsent", "%v: replay %d is on no topic", l, l.replays)
	}
	r.Missing += int64(missing)
	for key, h := range seen.keys {
		for number, dead := range h.dead {
			if first, there := h.first[number]; there && !dead.mayBePublished {
				more.fault(&r.Both, "both", "%v: it is at %s/%d@%d, too", dead, first.topic, first.partition, first.offset)
			}
		}
		for which, there := range h.replayed {
			if dead := h.dead[which.number]; dead == nil || dead.replays < which.count {
				more.fault(&r.Foreign, "replayed", "%s/%d@%d: key %s number %d: no dead letter says that it was replayed %d times",
					there.topic, there.partition, there.offset, key, which.number, which.count)
			}
		}
	}
	r.describe(&more)
}
