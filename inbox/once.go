package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// errNoID refuses a claim for no message.
var errNoID = errors.New("claim a message: its id is empty")

const claimSQL = `INSERT INTO public.cdc_relay_inbox (message_id, consumer) VALUES ($1, $2) ON CONFLICT DO NOTHING`

// Once claims a message for a consumer in the caller's transaction, with one statement.
// When first is true, this transaction is the first: produce the effect in it and commit
// both. When it is false the message is settled: commit or roll back, and go on with the
// next.
//
// While another transaction has claimed the message and is not done, Once waits for it.
// At READ COMMITTED it never fails for that, and the transaction stays usable. At
// REPEATABLE READ and SERIALIZABLE PostgreSQL answers a claim that was committed after the
// transaction's snapshot with a serialization failure (SQLSTATE 40001): roll back and run
// the transaction again, as those levels ask of everybody. [Processor] does so by itself.
//
// The rule is the primary key (message_id, consumer) of public.cdc_relay_inbox; see
// INSERT … ON CONFLICT in PostgreSQL's documentation.
//
// An empty messageID is an error: it would make one message of all that have none. One
// that PostgreSQL cannot keep (no UTF-8 text, or above 1,000 bytes) is claimed under what
// can be computed from it, as [Processor] does.
func Once(ctx context.Context, tx pgx.Tx, consumer, messageID string) (first bool, err error) {
	if messageID == "" {
		return false, errNoID
	}
	messageID = usableID(messageID)
	tag, err := tx.Exec(ctx, claimSQL, messageID, consumer)
	if err != nil {
		return false, fmt.Errorf("claim message %s for %s: %w", messageID, consumer, err)
	}
	return tag.RowsAffected() == 1, nil
}

// OnceSQL is [Once] for a transaction of database/sql, whatever the driver of PostgreSQL.
func OnceSQL(ctx context.Context, tx *sql.Tx, consumer, messageID string) (first bool, err error) {
	if messageID == "" {
		return false, errNoID
	}
	messageID = usableID(messageID)
	result, err := tx.ExecContext(ctx, claimSQL, messageID, consumer)
	if err != nil {
		return false, fmt.Errorf("claim message %s for %s: %w", messageID, consumer, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("claim message %s for %s: %w", messageID, consumer, err)
	}
	return n == 1, nil
}
