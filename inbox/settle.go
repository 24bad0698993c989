package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// claimed is what one statement says of a message.
type claimed struct {
	first    bool // nobody has settled it; else nothing more is known
	waits    bool // an earlier one of its lane is dead, due or parked
	attempts int  // deliveries that have failed
}

// The claim comes first in every transaction of a message, so that copies of it queue up
// here and nowhere else. It returns no row for one that is settled.
const claimAndLook = `INSERT INTO public.cdc_relay_inbox (message_id, consumer) VALUES ($1, $2)
	ON CONFLICT DO NOTHING
	RETURNING EXISTS (SELECT FROM public.cdc_relay_inbox_letter l
	                   WHERE l.consumer = $2 AND l.lane = $3 AND l.state IN ('dead', 'parked', 'due') AND l.blocks),
		coalesce((SELECT a.attempts FROM public.cdc_relay_inbox_attempt a WHERE a.message_id = $1 AND a.consumer = $2), 0)`

// claim begins a transaction and claims the message in it, in one round trip.
func (p *Processor) claim(ctx context.Context, m *Message, lane []byte, c *claimed) (pgx.Tx, error) {
	var b pgx.Batch
	b.BeginTx(p.cfg.TxOptions)
	b.Queue(claimAndLook, m.ID, p.cfg.Consumer, lane)
	results := p.cfg.Pool.SendBatch(ctx, &b)
	tx := results.Tx()
	err := c.read(results)
	if closed := results.Close(); err == nil {
		err = closed
	}
	if err != nil {
		rollBack(ctx, tx)
		return nil, fmt.Errorf("claim message %s for %s: %w", m.ID, p.cfg.Consumer, err)
	}
	return tx, nil
}

func (c *claimed) read(results pgx.BatchResults) error {
	if _, err := results.Exec(); err != nil { // BEGIN
		return err
	}
	*c = claimed{}
	err := results.QueryRow().Scan(&c.waits, &c.attempts)
	c.first = err == nil
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// settleAs changes the outcome of a message that this transaction has claimed.
func (p *Processor) settleAs(ctx context.Context, tx pgx.Tx, m *Message, outcome string) error {
	_, err := tx.Exec(ctx, `UPDATE public.cdc_relay_inbox SET outcome = $3, settled_at = now() WHERE message_id = $1 AND consumer = $2`,
		m.ID, p.cfg.Consumer, outcome)
	if err != nil {
		return fmt.Errorf("settle message %s: %w", m.ID, err)
	}
	return forgetAttempts(ctx, tx, p.cfg.Consumer, m.ID)
}

// A letter whose message was forgotten since is written anew.
const putLetter = `INSERT INTO public.cdc_relay_inbox_letter AS l (
		consumer, message_id, state, lane, blocks, topic, partition, record_offset, record_key, value,
		header_names, header_values, record_time, type, version, reason, error, deliveries, first_failed_at, last_failed_at
	) SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, a.first_failed_at, a.last_failed_at
	    FROM (SELECT) one
	    LEFT JOIN public.cdc_relay_inbox_attempt a ON a.message_id = $2 AND a.consumer = $1
	ON CONFLICT (consumer, message_id) DO UPDATE
	   SET state = excluded.state, lane = excluded.lane, blocks = excluded.blocks, topic = excluded.topic,
	       partition = excluded.partition, record_offset = excluded.record_offset, record_key = excluded.record_key,
	       value = excluded.value, header_names = excluded.header_names, header_values = excluded.header_values,
	       record_time = excluded.record_time, type = excluded.type, version = excluded.version, reason = excluded.reason,
	       error = excluded.error, deliveries = excluded.deliveries, first_failed_at = excluded.first_failed_at,
	       last_failed_at = excluded.last_failed_at, not_before = NULL, changed_at = now()`

// put writes a message that is settled without having been handled.
func (p *Processor) put(ctx context.Context, tx pgx.Tx, m *Message, lane []byte, state string, blocks bool, reason, cause string, deliveries int) error {
	names, values := make([][]byte, len(m.Headers)), make([][]byte, len(m.Headers))
	for i, h := range m.Headers {
		names[i], values[i] = []byte(h.Name), h.Value
	}
	var version *int64
	if v, ok := m.Version(); ok {
		version = &v
	}
	var kind, at any
	if t := m.Type(); t != "" {
		kind = textOf(t)
	}
	if y := m.Time.Year(); !m.Time.IsZero() && y > 0 && y < 10_000 { // a producer may give any number
		at = m.Time
	}
	_, err := tx.Exec(ctx, putLetter, p.cfg.Consumer, m.ID, state, lane, blocks, m.Topic, m.Partition, m.Offset, m.Key, m.Value,
		names, values, at, kind, version, reason, cause, deliveries)
	if err != nil {
		return fmt.Errorf("put message %s away as %s: %w", m.ID, state, err)
	}
	return nil
}

// park puts a message away that waits for another: behind one of its lane, in the order
// of arrival, or at a gap, in that of the versions.
func (p *Processor) park(ctx context.Context, tx pgx.Tx, m *Message, lane []byte, reason string) error {
	if err := p.put(ctx, tx, m, lane, "parked", reason == "behind", reason, "", 0); err != nil {
		return err
	}
	return p.settleAs(ctx, tx, m, "parked")
}

// bury settles a message as a dead letter, in one transaction, and reports it.
func (p *Processor) bury(ctx context.Context, m *Message, r report, reason string, cause error) report {
	lane := m.lane()
	blocks := p.cfg.Order == Park && lane != nil
	var c claimed
	_, err := p.transact(ctx, m, transaction{
		begin: func() (pgx.Tx, error) { return p.claim(ctx, m, lane, &c) },
		before: func(tx pgx.Tx) (bool, error) {
			if !c.first { // another process has settled it meanwhile
				r.Outcome, r.Reason, r.Err = Duplicate, "", nil
				return false, forgetAttempts(ctx, tx, p.cfg.Consumer, m.ID)
			}
			r.Outcome, r.Reason, r.Err = DeadLettered, reason, cause
			if err := p.put(ctx, tx, m, lane, "dead", blocks, reason, sanitise(cause, m), r.Attempts); err != nil {
				return false, err
			}
			if !blocks {
				if err := p.sequencePass(ctx, tx, m, lane); err != nil {
					return false, err
				}
			}
			return false, p.settleAs(ctx, tx, m, "dead")
		},
	})
	if err != nil {
		r.Reason = ""
		return p.unavailable(ctx, r, err)
	}
	p.back()
	return r
}
