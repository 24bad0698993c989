package deadletter

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// ParseReplay reads the content of a logical message with [ReplayPrefix]: the id of a
// dead letter and the number of the replay, one space between them. Anybody may write
// such a message; nothing but what [Replay] writes is read.
func ParseReplay(content []byte) (id int64, replays int, ok bool) {
	first, second, _ := bytes.Cut(content, []byte(" "))
	id, err := strconv.ParseInt(string(first), 10, 64)
	if err != nil || id < 1 {
		return 0, 0, false
	}
	n, err := strconv.ParseInt(string(second), 10, 32)
	if err != nil || n < 1 {
		return 0, 0, false
	}
	// Signs and leading zeros are not how the server writes a number.
	ok = string(content) == strconv.FormatInt(id, 10)+" "+strconv.FormatInt(n, 10)
	if !ok {
		return 0, 0, false
	}
	return id, int(n), true
}

// ReplayResult is what [Replay] did with one dead letter.
type ReplayResult struct {
	ID       int64
	Replayed bool // false: it was not dead, or there is none
	// LSN is reached by [Confirmed] once the relay is done with the replay: the record is
	// on its topic, or the letter is dead again. 0 unless Replayed.
	LSN pglogrepl.LSN
}

// Replay gives dead letters back to the relay, all of them or, on an error, none, in the
// order of their ids; the result has one entry for each id, ascending. topic is where
// they go, "" for where each belongs. A few dozen at a time are right: the transaction
// is decoded as a whole.
func Replay(ctx context.Context, db *catalog.DB, ids []int64, topic string) ([]ReplayResult, error) {
	const sql = "SELECT letter_id FROM public.cdc_relay_dead_letter_replay($1::int8[], $2::text)" // exact, as for [Put]
	replayed, err := query(ctx, db, 0, "replay dead letters", pgx.RowTo[int64], sql, ids, topic)
	if err != nil {
		return nil, err
	}
	var done pglogrepl.LSN
	if len(replayed) > 0 {
		// What is confirmed can lie between a message and its commit, where another
		// transaction has committed; it is past the commit once it is here.
		got, err := query(ctx, db, 0, "read the end of the log", pgx.RowTo[pglogrepl.LSN], "SELECT pg_current_wal_flush_lsn()::text")
		if err != nil {
			return nil, err
		}
		done = got[0]
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	results := make([]ReplayResult, len(ids))
	for i, id := range ids {
		results[i].ID = id
		if slices.Contains(replayed, id) {
			results[i].Replayed, results[i].LSN = true, done
		}
	}
	return results, nil
}

// Discard gives dead letters up and returns how many of them were dead.
func Discard(ctx context.Context, db *catalog.DB, ids []int64) (n int64, err error) {
	const sql = `
UPDATE public.cdc_relay_dead_letter SET state = 'discarded', changed_at = now()
 WHERE id = ANY ($1) AND state = 'dead'`
	n, err = db.Exec(ctx, "discard dead letters", sql, ids)
	return n, explain(db, err)
}

// Purge deletes dead letters of a slot, "" for all slots, that were replayed or
// discarded before that time, the oldest first, at most limit of them, and returns how
// many. Dead ones stay, and so does what the slot may still decode: the row itself, which
// would then be published, or the message about the letter.
func Purge(ctx context.Context, db *catalog.DB, slot string, before time.Time, limit int) (n int64, err error) {
	sql := `
DELETE FROM public.cdc_relay_dead_letter WHERE id IN (
       SELECT d.id
         FROM public.cdc_relay_dead_letter d
         LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = d.slot AND s.database = current_database()
        WHERE d.state <> 'dead' AND d.changed_at < ` + Moment("$2") + ` AND ($1::text = '' OR d.slot = $1)
          AND (s.slot_name IS NULL OR (d.commit_lsn < s.restart_lsn AND d.changed_lsn < s.restart_lsn))
        ORDER BY d.id LIMIT $3
          FOR UPDATE OF d SKIP LOCKED)`
	n, err = db.Exec(ctx, "purge dead letters", sql, slot, before.UnixMicro(), limit)
	if catalog.SQLState(err) == stateNoPrivilege {
		return n, explainPurge(db, err)
	}
	return n, explain(db, err)
}
