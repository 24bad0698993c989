package deadletter

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// Settled is [Get] after everybody who was changing the letter is done. The server
// streams a transaction as soon as its commit is in the log, and lets others see what
// it has changed a moment later, or much later if the commit waits for a standby. Until
// then the row stays locked: so a message that tells of a replay which [Get] does not
// show is either too early or forged, and after Settled it is forged.
func Settled(ctx context.Context, db *catalog.DB, slot string, id int64) (*Letter, bool, error) {
	const sql = "SELECT id FROM public.cdc_relay_dead_letter WHERE slot = $1 AND id = $2 FOR SHARE"
	if _, err := query(ctx, db, 0, "read a dead letter", pgx.RowTo[int64], sql, slot, id); err != nil {
		return nil, false, err
	}
	return Get(ctx, db, slot, id)
}
