package inboxdb

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// Lane is a key of a topic of which messages are parked.
type Lane struct {
	Consumer, Topic string
	Key             []byte
	Parked          int64
	Oldest          time.Time
	// Letter is the first one in the way, with its state (dead or due); 0 when there is none.
	Letter      int64
	LetterState string
	// Missing is the version that the lane waits for; nil when it waits at no gap.
	Missing *int64
	// Lowest is the lowest version that is parked at the gap.
	Lowest *int64
}

// LaneFilter chooses lanes; what is empty chooses all.
type LaneFilter struct {
	Consumer, Topic string
	Key             []byte // nil: every key
}

// The first letter in the way comes by the index of the open ones. Where a lane has no
// sequence yet, what is missing is not known for certain: a consumer may begin at another
// version than 1.
const lanesSQL = `
SELECT p.consumer, p.topic, p.record_key, p.n, %oldest, coalesce(w.id, 0), coalesce(w.state, ''),
       CASE WHEN p.lowest IS NOT NULL THEN coalesce(s.version + 1, 1) END, p.lowest
  FROM (SELECT consumer, lane, topic, record_key, count(*) AS n, min(created_at) AS oldest, min(id) AS first,
               min(version) FILTER (WHERE reason = 'gap') AS lowest
          FROM public.cdc_relay_inbox_letter
         WHERE state = 'parked' AND ($1::text = '' OR consumer = $1) AND ($2::text = '' OR topic = $2)
           AND ($3::bytea IS NULL OR record_key = $3)
         GROUP BY consumer, lane, topic, record_key) p
  LEFT JOIN LATERAL (SELECT l.id, l.state FROM public.cdc_relay_inbox_letter l
         WHERE l.consumer = p.consumer AND l.lane = p.lane AND l.state IN ('dead', 'due') AND l.blocks
         ORDER BY l.id LIMIT 1) w ON true
  LEFT JOIN public.cdc_relay_inbox_sequence s ON s.consumer = p.consumer AND s.lane = p.lane
 ORDER BY p.first LIMIT $4`

// Lanes returns lanes with parked messages, those that wait longest first, at most limit.
func Lanes(ctx context.Context, db *catalog.DB, f LaneFilter, limit int) ([]Lane, error) {
	scan := func(row pgx.CollectableRow) (l Lane, err error) {
		var oldest *int64
		err = row.Scan(&l.Consumer, &l.Topic, &l.Key, &l.Parked, &oldest, &l.Letter, &l.LetterState, &l.Missing, &l.Lowest)
		l.Oldest = deadletter.TimeOf(oldest)
		return l, err
	}
	return query(ctx, db, "list what is parked", scan, withTimes(lanesSQL, "%oldest", "p.oldest"), f.Consumer, f.Topic, f.Key, limit)
}

// Pass moves the sequence of a lane to just before its lowest parked version, so that the
// runner goes on there, and reports whether it was behind that.
func Pass(ctx context.Context, db *catalog.DB, l Lane) (bool, error) {
	const sql = `
INSERT INTO public.cdc_relay_inbox_sequence AS s (consumer, lane, version)
VALUES ($1, public.cdc_inbox_lane($2::text, $3::bytea), $4::int8 - 1)
ON CONFLICT (consumer, lane) DO UPDATE SET version = excluded.version, changed_at = now()
 WHERE s.version IS NULL OR s.version < excluded.version`
	if l.Lowest == nil {
		return false, nil
	}
	n, err := db.Exec(ctx, "pass over a gap", sql, l.Consumer, l.Topic, l.Key, *l.Lowest)
	return n > 0, explain(db, err)
}

// withTimes puts the expressions that read columns into a statement: a mark, the column
// that it stands for, and so on.
func withTimes(sql string, marks ...string) string {
	for i := 0; i+1 < len(marks); i += 2 {
		marks[i+1] = deadletter.MicrosOf(marks[i+1])
	}
	return strings.NewReplacer(marks...).Replace(sql)
}
