package deadletter

import (
	"context"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// aheadLetters and aheadBytes bound what Ahead reads, so that it takes no longer than
// another statement.
const (
	aheadLetters = 32
	aheadBytes   = bulkBytes / aheadLetters // of a value
)

// Ahead returns letters that were replayed from a position of the log on, as [Get] does,
// beginning with a number: most likely those whose messages come next, since the
// messages of one transaction come in the order of the numbers. It may leave out any.
func Ahead(ctx context.Context, db *catalog.DB, slot string, id int64, replayed pglogrepl.LSN) ([]*Letter, error) {
	// The numbers are bounded, too: letters far away are none of the same transaction.
	sql := "SELECT " + columns + `, value FROM public.cdc_relay_dead_letter
		WHERE slot = $1 AND id BETWEEN $2::bigint AND $2::bigint + 1000 AND state = 'replayed' AND changed_lsn >= $3::text::pg_lsn
		AND value_kept AND coalesce(value_bytes, 0) <= $4::bigint ORDER BY id LIMIT $5::int`
	scan := func(row pgx.CollectableRow) (*Letter, error) {
		l := new(Letter)
		return l, l.scan(row, &l.Value)
	}
	return query(ctx, db, 0, "read dead letters", scan, sql, slot, id, replayed.String(), int64(aheadBytes), aheadLetters)
}
