package inboxdb

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// Message is what a consumer knows of one message.
type Message struct {
	Consumer, ID string
	Outcome      string    // "" while it is not settled
	Settled      time.Time // zero while it is not
	Letter       int64     // its letter, 0 when there is none
	LetterState  string
	Attempts     int // that have failed while it is not settled
	Error        string
	LastFailed   time.Time
}

const messageSQL = `
SELECT k.consumer, k.message_id, coalesce(i.outcome, ''), %settled, coalesce(l.id, 0), coalesce(l.state, ''),
       coalesce(a.attempts, 0), coalesce(a.error, ''), %failed
  FROM (SELECT consumer, message_id FROM public.cdc_relay_inbox WHERE message_id = $1
        UNION SELECT consumer, message_id FROM public.cdc_relay_inbox_attempt WHERE message_id = $1
        UNION SELECT consumer, message_id FROM public.cdc_relay_inbox_letter WHERE message_id = $1) k
  LEFT JOIN public.cdc_relay_inbox i ON i.consumer = k.consumer AND i.message_id = k.message_id
  LEFT JOIN public.cdc_relay_inbox_attempt a ON a.consumer = k.consumer AND a.message_id = k.message_id
  LEFT JOIN public.cdc_relay_inbox_letter l ON l.consumer = k.consumer AND l.message_id = k.message_id
 WHERE $2::text = '' OR k.consumer = $2
 ORDER BY k.consumer`

// Find returns what consumers, or the one that is named, know of a message.
func Find(ctx context.Context, db *catalog.DB, consumer, id string) ([]Message, error) {
	scan := func(row pgx.CollectableRow) (m Message, err error) {
		var settled, failed *int64
		err = row.Scan(&m.Consumer, &m.ID, &m.Outcome, &settled, &m.Letter, &m.LetterState, &m.Attempts, &m.Error, &failed)
		m.Settled, m.LastFailed = deadletter.TimeOf(settled), deadletter.TimeOf(failed)
		return m, err
	}
	sql := withTimes(messageSQL, "%settled", "i.settled_at", "%failed", "a.last_failed_at")
	return query(ctx, db, "look for a message in the inbox", scan, sql, id, consumer)
}

// Forget lets a message run again the next time that it is delivered, and reports whether
// the consumer had settled it. One that is dead or parked is refused by the server
// (SQLSTATE 55000).
func Forget(ctx context.Context, db *catalog.DB, consumer, id string) (bool, error) {
	got, err := query(ctx, db, "forget a message", pgx.RowTo[bool], "SELECT public.cdc_inbox_forget($1::text, $2::text)", consumer, id)
	return err == nil && got[0], err
}

// Prune forgets at most limit settled messages of a consumer that are older than before,
// and returns how many. busy means that another pruner of the consumer is at work.
func Prune(ctx context.Context, db *catalog.DB, consumer string, before time.Time, limit int) (n int64, busy bool, err error) {
	got, err := query(ctx, db, "prune the inbox", pgx.RowTo[*int64],
		"SELECT public.cdc_inbox_prune($1::text, "+deadletter.Moment("$2")+", $3::int4)", consumer, before.UnixMicro(), limit)
	if err != nil {
		return 0, false, err
	}
	if got[0] == nil {
		return 0, true, nil
	}
	return *got[0], false, nil
}

// Remembers returns for how long a consumer says that it remembers what it has settled; 0
// when it says nothing, or remembers for ever.
func Remembers(ctx context.Context, db *catalog.DB, consumer string) (time.Duration, error) {
	got, err := query(ctx, db, "look for the consumer's retention", pgx.RowTo[int64],
		`SELECT coalesce(extract(epoch FROM c.retention) * 1000000, 0)::int8
		   FROM (SELECT) one LEFT JOIN public.cdc_relay_inbox_consumer c ON c.consumer = $1`, consumer)
	if err != nil {
		return 0, err
	}
	return time.Duration(got[0]) * time.Microsecond, nil
}

// Consumer is what a consumer has settled and says of itself.
type Consumer struct {
	Name                                      string
	Processed, Stale, Parked, Dead, Discarded int64     // messages, by outcome
	Due                                       int64     // dead letters given back to the runner
	Failing                                   int64     // messages that have failed and are not settled
	OldestSettled                             time.Time // zero when there is none
	OldestFailing                             time.Time
	RunnerSeen                                time.Time     // zero: never
	RunnerAge                                 time.Duration // since then, by the clock of the server
	Retention                                 time.Duration // 0: nothing is pruned
	MaxDeliveries                             int
	Order                                     string
	BreakerOpen                               bool
	Known                                     bool // it has said something of itself
}

const consumersSQL = `
WITH settled AS (
	SELECT consumer, count(*) FILTER (WHERE outcome = 'processed') AS processed, count(*) FILTER (WHERE outcome = 'stale') AS stale,
	       count(*) FILTER (WHERE outcome = 'parked') AS parked, count(*) FILTER (WHERE outcome = 'dead') AS dead,
	       count(*) FILTER (WHERE outcome = 'discarded') AS discarded, min(settled_at) AS oldest
	  FROM public.cdc_relay_inbox WHERE $1::text = '' OR consumer = $1 GROUP BY consumer
), failing AS (
	SELECT consumer, count(*) AS n, min(first_failed_at) AS oldest
	  FROM public.cdc_relay_inbox_attempt WHERE $1::text = '' OR consumer = $1 GROUP BY consumer
), due AS (
	SELECT consumer, count(*) AS n FROM public.cdc_relay_inbox_letter
	 WHERE state = 'due' AND ($1::text = '' OR consumer = $1) GROUP BY consumer
), said AS (
	SELECT * FROM public.cdc_relay_inbox_consumer WHERE $1::text = '' OR consumer = $1
)
SELECT k.consumer, coalesce(s.processed, 0), coalesce(s.stale, 0), coalesce(s.parked, 0),
       coalesce(s.dead, 0) - coalesce(d.n, 0), coalesce(s.discarded, 0),
       coalesce(d.n, 0), coalesce(f.n, 0), %settled, %failing, %seen,
       coalesce(extract(epoch FROM now() - c.runner_seen_at) * 1000000, 0)::int8,
       coalesce(extract(epoch FROM c.retention) * 1000000, 0)::int8, coalesce(c.max_deliveries, 0),
       coalesce(c.order_policy, ''), coalesce(c.breaker_open, false), c.consumer IS NOT NULL
  FROM (SELECT consumer FROM settled UNION SELECT consumer FROM failing UNION SELECT consumer FROM due
        UNION SELECT consumer FROM said) k
  LEFT JOIN settled s USING (consumer) LEFT JOIN failing f USING (consumer)
  LEFT JOIN due d USING (consumer) LEFT JOIN said c USING (consumer)
 ORDER BY k.consumer`

// Consumers returns what there is of every consumer, or of the one that is named. It
// reads every settled message, which may take minutes.
func Consumers(ctx context.Context, db *catalog.DB, name string) ([]Consumer, error) {
	scan := func(row pgx.CollectableRow) (c Consumer, err error) {
		var settled, failing, seen *int64
		var age, retention int64
		err = row.Scan(&c.Name, &c.Processed, &c.Stale, &c.Parked, &c.Dead, &c.Discarded, &c.Due, &c.Failing,
			&settled, &failing, &seen, &age, &retention, &c.MaxDeliveries, &c.Order, &c.BreakerOpen, &c.Known)
		c.OldestSettled, c.OldestFailing, c.RunnerSeen = deadletter.TimeOf(settled), deadletter.TimeOf(failing), deadletter.TimeOf(seen)
		c.RunnerAge, c.Retention = time.Duration(age)*time.Microsecond, time.Duration(retention)*time.Microsecond
		return c, err
	}
	sql := withTimes(consumersSQL, "%settled", "s.oldest", "%failing", "f.oldest", "%seen", "c.runner_seen_at")
	got, err := catalog.QueryWithin(ctx, db, countLimit, "count what consumers have settled", scan, sql, name)
	return got, explain(db, err)
}

// Runner is the state of a consumer's runner.
type Runner struct {
	Consumer string
	Seen     bool
	Age      time.Duration // since it was seen, by the clock of the server
}

// Runners returns the runners of the consumers that have some of these letters.
func Runners(ctx context.Context, db *catalog.DB, letters []int64) ([]Runner, error) {
	const sql = `
SELECT k.consumer, c.runner_seen_at IS NOT NULL, coalesce(extract(epoch FROM now() - c.runner_seen_at) * 1000000, 0)::int8
  FROM (SELECT DISTINCT consumer FROM public.cdc_relay_inbox_letter WHERE id = ANY ($1)) k
  LEFT JOIN public.cdc_relay_inbox_consumer c USING (consumer) ORDER BY k.consumer`
	scan := func(row pgx.CollectableRow) (r Runner, err error) {
		var age int64
		err = row.Scan(&r.Consumer, &r.Seen, &age)
		r.Age = time.Duration(age) * time.Microsecond
		return r, err
	}
	return query(ctx, db, "look for the consumer's runner", scan, sql, letters)
}
