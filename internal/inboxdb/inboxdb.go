// Package inboxdb is what the commands read and change in the database of a consumer:
// its dead letters and parked messages, what it has settled, and what it says of itself.
// The tables and functions are those of the migration cdc_relay_inbox.
//
// Nothing here handles a message; that is for the consumer's own runner (package inbox).
package inboxdb

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// The reasons of a consumer's letters.
const (
	MaxDeliveries deadletter.Reason = "max_deliveries" // its handler has failed too often
	Permanent     deadletter.Reason = "permanent"      // its handler said that it will always fail
	Crashed       deadletter.Reason = "crashed"        // deliveries began and did not end
	NoID          deadletter.Reason = "no_id"          // it has no header id, so copies of it cannot be told
	Behind        deadletter.Reason = "behind"         // parked: an earlier one of its key waits
	Gap           deadletter.Reason = "gap"            // parked: an earlier version of its key is missing
)

// Place is what a consumer's letter has besides what every dead letter has.
type Place struct {
	Consumer  string
	Partition int
	Offset    int64
	Version   *int64 // of the aggregate, nil when the record has none
	Blocks    bool   // later messages of its key wait while it does
	NotBefore time.Time
}

// Letter is a message that a consumer has settled without handling it, or had. Of the
// fields that say where a row of the outbox came from none is set.
type Letter struct {
	deadletter.Letter
	Place
}

// countLimit is for statements that look at every settled message.
const countLimit = 5 * time.Minute

const migrate = "run `cdc-relay migrate up --only cdc_relay_inbox` on the consumer's database (postgres.url)"

var tables = "public." + strings.Join([]string{
	"cdc_relay_inbox", "cdc_relay_inbox_attempt", "cdc_relay_inbox_letter", "cdc_relay_inbox_sequence", "cdc_relay_inbox_consumer",
}, ", public.")

// Grants returns the statements that let a role consume, and run these commands.
func Grants(role string) []string {
	role = pgx.Identifier{role}.Sanitize()
	return []string{
		"GRANT USAGE ON SCHEMA public TO " + role,
		"GRANT SELECT, INSERT, UPDATE, DELETE ON " + tables + " TO " + role,
	}
}

func explain(db *catalog.DB, err error) error {
	return deadletter.Explain(err, migrate, "as the owner of the tables: "+strings.Join(Grants(db.Role()), "; "))
}

func query[T any](ctx context.Context, db *catalog.DB, what string, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	got, err := catalog.Query(ctx, db, what, scan, sql, args...)
	return got, explain(db, err)
}

func parameter(n int) string { return "$" + strconv.Itoa(n) }
