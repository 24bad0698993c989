package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// newSlot has the relay create a slot, and what else is missing.
func (l *Lab) newSlot(ctx context.Context) (string, error) {
	l.slots++
	slot := fmt.Sprintf("bench_%d", l.slots)
	config, err := l.writeConfig(slot, "127.0.0.1:0", nil)
	if err != nil {
		return "", err
	}
	return slot, l.command(ctx, "init", "--config", config)
}

// copySlot makes a slot at the same position, one that the relay knows as well, so that each run decodes the same WAL
// from the same point.
func (l *Lab) copySlot(ctx context.Context, from string) (string, error) {
	l.slots++
	slot := fmt.Sprintf("bench_%d", l.slots)
	if _, err := l.db.Exec(ctx, "SELECT pg_copy_logical_replication_slot($1, $2)", from, slot); err != nil {
		return "", fmt.Errorf("copy slot %s: %w", from, err)
	}
	_, err := l.db.Exec(ctx, `
INSERT INTO public.cdc_relay_slots
SELECT (jsonb_populate_record(r, jsonb_build_object('slot', $2::text))).* FROM public.cdc_relay_slots r WHERE slot = $1`, from, slot)
	if err != nil {
		return "", fmt.Errorf("make slot %s known to the relay: %w", slot, err)
	}
	return slot, nil
}

// dropSlot drops a slot and forgets it, once nobody streams from it any more.
func (l *Lab) dropSlot(ctx context.Context, slot string) error {
	for {
		state, err := l.slot(ctx, slot)
		if err != nil {
			return err
		}
		if state.pid == 0 {
			break
		}
		if err := pause(ctx, watchInterval); err != nil {
			return err
		}
	}
	_, err := l.db.Exec(ctx, `
WITH gone AS (SELECT pg_drop_replication_slot($1::name)), row AS (DELETE FROM public.cdc_relay_slots WHERE slot = $1)
SELECT FROM gone`, slot)
	if err != nil {
		return fmt.Errorf("drop slot %s: %w", slot, err)
	}
	return nil
}

// slotState is what the server says of a slot.
type slotState struct {
	pid       int // of the walsender, 0 when nobody streams
	confirmed pglogrepl.LSN
}

func (l *Lab) slot(ctx context.Context, slot string) (slotState, error) {
	var s slotState
	var confirmed string
	err := l.db.QueryRow(ctx, `
SELECT coalesce(active_pid, 0), confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, slot).Scan(&s.pid, &confirmed)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, fmt.Errorf("slot %s does not exist", slot)
	}
	if err != nil {
		return s, fmt.Errorf("look at slot %s: %w", slot, err)
	}
	s.confirmed, err = pglogrepl.ParseLSN(confirmed)
	return s, err
}

// fill commits transactions of so many rows and returns the position behind them.
func (l *Lab) fill(ctx context.Context, transactions, size, more int) (pglogrepl.LSN, error) {
	started := time.Now()
	for _, sql := range []string{
		"SET synchronous_commit = off", fmt.Sprintf("CALL bench_fill(%d, %d, %d)", transactions, size, more),
		"RESET synchronous_commit",
	} {
		if _, err := l.db.Exec(ctx, sql); err != nil {
			return 0, fmt.Errorf("fill the outbox: %w", err)
		}
	}
	var end string
	if err := l.db.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		return 0, err
	}
	// This writes WAL, so that the server's end lies behind the position; and nothing is left to be written later.
	if _, err := l.db.Exec(ctx, "CHECKPOINT"); err != nil {
		return 0, err
	}
	l.say("%d transactions of %d rows written in %.0f s", transactions, size, time.Since(started).Seconds())
	return pglogrepl.ParseLSN(end)
}

// clear empties the table.
func (l *Lab) clear(ctx context.Context) error {
	_, err := l.db.Exec(ctx, "TRUNCATE public.outbox")
	return err
}
