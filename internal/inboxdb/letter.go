package inboxdb

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

var columns = strings.Join([]string{
	"id", "consumer", "message_id", "state", "blocks", "topic", "partition", "record_offset", "record_key",
	"coalesce(length(value), -1)::int8", "header_names", "header_values", deadletter.MicrosOf("record_time"),
	"coalesce(type, '')", "version", "reason", "error", "deliveries",
	deadletter.MicrosOf("first_failed_at"), deadletter.MicrosOf("last_failed_at"), "replays",
	deadletter.MicrosOf("not_before"), deadletter.MicrosOf("created_at"), deadletter.MicrosOf("changed_at"),
}, ", ")

// scan reads columns, and what comes after them into more.
func (l *Letter) scan(row pgx.CollectableRow, more ...any) error {
	var id string
	var names, values [][]byte
	var recorded, first, last, notBefore, created, changed *int64
	into := []any{
		&l.ID, &l.Consumer, &id, &l.State, &l.Blocks, &l.Topic, &l.Partition, &l.Offset, &l.Key,
		&l.ValueBytes, &names, &values, &recorded, &l.Type, &l.Version, &l.Reason, &l.Error, &l.Attempts,
		&first, &last, &l.Replays, &notBefore, &created, &changed,
	}
	if err := row.Scan(append(into, more...)...); err != nil {
		return err
	}
	l.MessageID, l.ValueKept = []byte(id), true
	l.Headers = deadletter.HeadersOf(names, values)
	l.RecordTime, l.FirstFailed, l.LastFailed = deadletter.TimeOf(recorded), deadletter.TimeOf(first), deadletter.TimeOf(last)
	l.NotBefore, l.Created, l.Changed = deadletter.TimeOf(notBefore), deadletter.TimeOf(created), deadletter.TimeOf(changed)
	return nil
}

func where(f deadletter.Filter) (string, []any) { return f.Where("consumer", f.ID) }

// List returns letters without values, in the order of their ids: the first limit of
// those after that id. The filter's Owner is the consumer.
func List(ctx context.Context, db *catalog.DB, f deadletter.Filter, limit int, after int64) ([]Letter, error) {
	condition, args := where(f)
	n := len(args)
	sql := "SELECT " + columns + " FROM public.cdc_relay_inbox_letter WHERE " + condition +
		" AND id > " + parameter(n+1) + " ORDER BY id LIMIT " + parameter(n+2)
	scan := func(row pgx.CollectableRow) (l Letter, err error) {
		err = l.scan(row)
		return l, err
	}
	return query(ctx, db, "list the letters of the inbox", scan, sql, append(args, after, limit)...)
}

// Count counts what [List] returns in all.
func Count(ctx context.Context, db *catalog.DB, f deadletter.Filter) (int64, error) {
	condition, args := where(f)
	got, err := query(ctx, db, "count the letters of the inbox", pgx.RowTo[int64],
		"SELECT count(*) FROM public.cdc_relay_inbox_letter WHERE "+condition, args...)
	if err != nil {
		return 0, err
	}
	return got[0], nil
}

// Get returns one letter of the consumer, "" for any, whole.
func Get(ctx context.Context, db *catalog.DB, consumer string, id int64) (*Letter, bool, error) {
	sql := "SELECT " + columns + ", value FROM public.cdc_relay_inbox_letter WHERE id = $1 AND ($2::text = '' OR consumer = $2)"
	scan := func(row pgx.CollectableRow) (*Letter, error) {
		l := new(Letter)
		return l, l.scan(row, &l.Value)
	}
	got, err := query(ctx, db, "read a letter of the inbox", scan, sql, id, consumer)
	if err != nil || len(got) == 0 {
		return nil, false, err
	}
	return got[0], true, nil
}

// Stats counts the letters of a consumer, "" for all, in some states, none for all.
func Stats(ctx context.Context, db *catalog.DB, consumer string, states ...deadletter.State) ([]deadletter.Stat, error) {
	condition, args := where(deadletter.Filter{Owner: consumer, States: states})
	sql := "SELECT consumer, state, reason, count(*), " + deadletter.MicrosOf("min(created_at)") +
		" FROM public.cdc_relay_inbox_letter WHERE " + condition +
		" GROUP BY consumer, state, reason ORDER BY consumer, state, reason"
	return query(ctx, db, "count the letters of the inbox", deadletter.ScanStat, sql, args...)
}

// Replay marks dead letters as due and returns those that were dead.
func Replay(ctx context.Context, db *catalog.DB, ids []int64) ([]int64, error) {
	return query(ctx, db, "replay dead letters", pgx.RowTo[int64], "SELECT public.cdc_inbox_replay($1::int8[])", ids)
}

// Discard gives dead letters up and returns how many of them were dead.
func Discard(ctx context.Context, db *catalog.DB, ids []int64) (int64, error) {
	got, err := query(ctx, db, "discard dead letters", pgx.RowTo[int64], "SELECT public.cdc_inbox_discard($1::int8[])", ids)
	return int64(len(got)), err
}

// Purge deletes letters of a consumer, "" for all, that were processed or discarded
// before that time, the oldest first, at most limit of them, and returns how many. That
// their messages are settled is remembered until [Prune].
func Purge(ctx context.Context, db *catalog.DB, consumer string, before time.Time, limit int) (int64, error) {
	sql := `DELETE FROM public.cdc_relay_inbox_letter WHERE id IN (
		SELECT id FROM public.cdc_relay_inbox_letter
		 WHERE state IN ('processed', 'discarded') AND changed_at < ` + deadletter.Moment("$2") + ` AND ($1::text = '' OR consumer = $1)
		 ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)`
	n, err := db.Exec(ctx, "purge dead letters", sql, consumer, before.UnixMicro(), limit)
	return n, explain(db, err)
}
