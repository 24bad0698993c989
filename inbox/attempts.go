package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// counting is what a delivery finds that is counted before the handler runs.
type counting int

const (
	counted counting = iota
	alreadySettled
	usedUp
)

const (
	countFailure = `SELECT public.cdc_inbox_failed($1, $2, $3)`
	// Of a message that another instance has settled meanwhile nothing is counted.
	countUnsettled = `SELECT public.cdc_inbox_failed($1, $2, $3)
		WHERE NOT EXISTS (SELECT FROM public.cdc_relay_inbox WHERE message_id = $2 AND consumer = $1)`
	// One statement, so that a copy of a settled message counts nothing.
	countDelivery = `WITH settled AS (SELECT FROM public.cdc_relay_inbox WHERE message_id = $1 AND consumer = $2),
		counted AS (
			INSERT INTO public.cdc_relay_inbox_attempt AS a (message_id, consumer, attempts)
			SELECT $1, $2, 1 WHERE NOT EXISTS (SELECT FROM settled)
			ON CONFLICT (message_id, consumer) DO UPDATE SET attempts = a.attempts + 1, last_failed_at = now() WHERE a.attempts < $3
			RETURNING 1)
		SELECT EXISTS (SELECT FROM settled), EXISTS (SELECT FROM counted)`
	nameFailure = `UPDATE public.cdc_relay_inbox_attempt SET error = $3, last_failed_at = now()
		WHERE message_id = $1 AND consumer = $2 RETURNING attempts`
	takeBack = `UPDATE public.cdc_relay_inbox_attempt SET attempts = attempts - 1
		WHERE message_id = $1 AND consumer = $2 AND attempts > 0`
	forget = `DELETE FROM public.cdc_relay_inbox_attempt WHERE message_id = $1 AND consumer = $2`
)

// countBefore counts a delivery that is about to begin.
func (p *Processor) countBefore(ctx context.Context, m *Message) (counting, error) {
	var settled, more bool
	err := p.cfg.Pool.QueryRow(ctx, countDelivery, m.ID, p.cfg.Consumer, p.cfg.MaxDeliveries).Scan(&settled, &more)
	switch {
	case err != nil:
		return counted, fmt.Errorf("count the delivery of message %s: %w", m.ID, err)
	case settled:
		return alreadySettled, nil
	case !more:
		return usedUp, nil
	}
	return counted, nil
}

// countFailed counts a delivery that failed, or names the failure of one that was counted
// before, and returns how many have.
func (p *Processor) countFailed(ctx context.Context, m *Message, cause error) (int, error) {
	text := sanitise(cause, m)
	var n int
	var err error
	if p.cfg.CountBefore {
		err = p.cfg.Pool.QueryRow(ctx, nameFailure, m.ID, p.cfg.Consumer, text).Scan(&n)
	} else {
		err = p.cfg.Pool.QueryRow(ctx, countUnsettled, p.cfg.Consumer, m.ID, text).Scan(&n)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return 1, nil // another instance has settled the message meanwhile, as the claim will say
	}
	if err != nil {
		return 0, fmt.Errorf("count the failure of message %s: %w", m.ID, err)
	}
	return n, nil
}

// uncountTimeout bounds what is done after the delivery's own time is over.
const uncountTimeout = time.Second

// uncount takes back a delivery that was counted before and is not to count. When that
// fails, it counts.
func (p *Processor) uncount(ctx context.Context, m *Message) {
	if !p.cfg.CountBefore {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uncountTimeout)
	defer cancel()
	_, _ = p.cfg.Pool.Exec(ctx, takeBack, m.ID, p.cfg.Consumer)
}

func forgetAttempts(ctx context.Context, tx pgx.Tx, consumer, id string) error {
	if _, err := tx.Exec(ctx, forget, id, consumer); err != nil {
		return fmt.Errorf("forget the failures of message %s: %w", id, err)
	}
	return nil
}

// maxID is how long a message id may be to stand in an index.
const maxID = 1000

// usableID returns id if PostgreSQL can keep it. Ids that are too long or no text are
// replaced by what can be computed from them again.
func usableID(id string) string {
	if len(id) > maxID {
		sum := sha256.Sum256([]byte(id))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return textOf(id)
}

// textOf returns s as text that PostgreSQL takes.
func textOf(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
