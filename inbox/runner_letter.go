package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// letter is a message that was put away and that the runner now handles.
type letter struct {
	id      int64
	message Message
	lane    []byte
	due     bool // a dead letter that was replayed; else it is parked
	reason  string
	replays int
}

// runnable is the condition under which the runner handles a letter l, with the consumer
// as $1, the time as $2 and whether versions are checked as $3:
//   - its pause after a failure is over,
//   - no earlier one of its lane is in its way: one that blocks, whether dead, parked or
//     due, or one that is due itself, so that several that are replayed keep their order,
//   - nothing is missing before it any more.
//
// OFFSET 0 has the server look into the index for each letter: a join would compare every
// two letters of a key, of which there may be many.
const runnable = `l.consumer = $1 AND l.state IN ('due', 'parked')
	AND (l.not_before IS NULL OR l.not_before <= $2)
	AND NOT EXISTS (SELECT FROM public.cdc_relay_inbox_letter e
	                 WHERE e.consumer = l.consumer AND e.lane = l.lane AND e.id < l.id
	                   AND e.state IN ('dead', 'parked', 'due') AND (e.blocks OR e.state = 'due') OFFSET 0)
	AND (l.state = 'due' OR l.reason <> 'gap' OR NOT $3::boolean
	     OR EXISTS (SELECT FROM public.cdc_relay_inbox_sequence s
	                 WHERE s.consumer = l.consumer AND s.lane = l.lane AND l.version <= s.version + 1))`

const (
	// SKIP LOCKED leaves out what another runner has at work; the locks of this
	// statement end with it. What was tried last comes last, so that the breaker's probes
	// go round.
	findRunnable = `SELECT l.id FROM public.cdc_relay_inbox_letter l WHERE ` + runnable + `
		ORDER BY l.not_before NULLS FIRST, l.id LIMIT $4 FOR UPDATE OF l SKIP LOCKED`
	// The next of the lane of letter $4. After a gap it may have been parked earlier.
	findNext = `SELECT l.id FROM public.cdc_relay_inbox_letter l WHERE ` + runnable + `
		AND l.lane = (SELECT lane FROM public.cdc_relay_inbox_letter WHERE id = $4)
		ORDER BY l.id LIMIT 1`
	takeRunnable = `SELECT l.message_id, l.lane, l.state = 'due', l.reason, l.replays,
		       l.topic, l.partition, l.record_offset, l.record_key, l.value, l.header_names, l.header_values, l.record_time
		  FROM public.cdc_relay_inbox_letter l WHERE ` + runnable + ` AND l.id = $4 FOR UPDATE OF l SKIP LOCKED`
)

// findBatch bounds how many letters one look returns.
const findBatch = 100

func (p *Processor) checksVersions() bool { return p.cfg.Sequence.Mode == ByVersion }

// findLetters returns letters that may be handled now.
func (p *Processor) findLetters(ctx context.Context) ([]int64, error) {
	rows, err := p.cfg.Pool.Query(ctx, findRunnable, p.cfg.Consumer, p.now(), p.checksVersions(), findBatch)
	if err != nil {
		return nil, fmt.Errorf("look for messages that are due: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("look for messages that are due: %w", err)
	}
	return ids, nil
}

// nextOfLane returns the letter that may be handled now that letter id is settled; 0 when
// there is none.
func (p *Processor) nextOfLane(ctx context.Context, id int64) (int64, error) {
	var next int64
	err := p.cfg.Pool.QueryRow(ctx, findNext, p.cfg.Consumer, p.now(), p.checksVersions(), id).Scan(&next)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("look for the next message of the key: %w", err)
	}
	return next, nil
}

// errNotTaken ends the transaction of a letter that another runner has, or that may not
// be handled any more.
var errNotTaken = errors.New("the letter is not to be handled now")

// take locks a letter in tx and reads it; errNotTaken when it may not be handled at the
// time at.
func (p *Processor) take(ctx context.Context, tx pgx.Tx, l *letter, at time.Time) error {
	m := &l.message
	*m = Message{}
	var names, values [][]byte
	var recorded *time.Time
	err := tx.QueryRow(ctx, takeRunnable, p.cfg.Consumer, at, p.checksVersions(), l.id).Scan(
		&m.ID, &l.lane, &l.due, &l.reason, &l.replays,
		&m.Topic, &m.Partition, &m.Offset, &m.Key, &m.Value, &names, &values, &recorded)
	if errors.Is(err, pgx.ErrNoRows) {
		return errNotTaken
	}
	if err != nil {
		return fmt.Errorf("take letter %d: %w", l.id, err)
	}
	if recorded != nil {
		m.Time = *recorded
	}
	for i, name := range names {
		h := Header{Name: string(name)}
		if i < len(values) {
			h.Value = values[i]
		}
		m.Headers = append(m.Headers, h)
	}
	return nil
}

const settleLetter = `UPDATE public.cdc_relay_inbox_letter SET state = 'processed', not_before = NULL, changed_at = now() WHERE id = $1`

// settle ends a letter in the transaction of its effect.
func (p *Processor) settle(ctx context.Context, tx pgx.Tx, l *letter, outcome string) error {
	if _, err := tx.Exec(ctx, settleLetter, l.id); err != nil {
		return fmt.Errorf("settle letter %d: %w", l.id, err)
	}
	return p.settleAs(ctx, tx, &l.message, outcome)
}

const parkAtGap = `UPDATE public.cdc_relay_inbox_letter
	SET state = 'parked', reason = 'gap', blocks = false, not_before = NULL, changed_at = now() WHERE id = $1`

// parkLetter has a letter wait for the version that is missing before it.
func (p *Processor) parkLetter(ctx context.Context, tx pgx.Tx, l *letter) error {
	if _, err := tx.Exec(ctx, parkAtGap, l.id); err != nil {
		return fmt.Errorf("park letter %d: %w", l.id, err)
	}
	return p.settleAs(ctx, tx, &l.message, "parked")
}

const buryAgain = `UPDATE public.cdc_relay_inbox_letter l
	SET state = 'dead', blocks = $2, reason = $3, error = $4, deliveries = $5, not_before = NULL, changed_at = now(),
	    first_failed_at = a.first_failed_at, last_failed_at = a.last_failed_at
	FROM (SELECT) one
	LEFT JOIN public.cdc_relay_inbox_attempt a ON a.message_id = $6 AND a.consumer = $7
	WHERE l.id = $1`

// buryLetter makes a letter dead again, or for the first time.
func (p *Processor) buryLetter(ctx context.Context, tx pgx.Tx, l *letter, reason string, cause error, deliveries int) error {
	m := &l.message
	blocks := p.cfg.Order == Park && l.lane != nil
	_, err := tx.Exec(ctx, buryAgain, l.id, blocks, reason, sanitise(cause, m), deliveries, m.ID, p.cfg.Consumer)
	if err != nil {
		return fmt.Errorf("bury letter %d: %w", l.id, err)
	}
	if err := p.settleAs(ctx, tx, m, "dead"); err != nil || blocks {
		return err
	}
	return p.sequencePass(ctx, tx, m, l.lane)
}
