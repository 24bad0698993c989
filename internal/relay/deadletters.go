package relay

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// DeadLetters says what becomes of rows that cannot be published.
type DeadLetters struct {
	// Enabled has rows that can never be published become dead letters. Without it
	// they halt. What is a dead letter already is one in either case.
	Enabled bool
	// MaxValueBytes is the size up to which a value is kept with its dead letter. A
	// larger one is read from the outbox table when it is replayed.
	MaxValueBytes int
	// Retention is the age from which dead letters that were replayed or discarded
	// are deleted; 0 keeps them.
	Retention time.Duration
	// Window and Share are the breaker: of the last Window rows no more than this
	// share may become dead letters. A share of 1 switches it off.
	Window int
	Share  float64
}

// Refused makes a row that no broker takes a dead letter. It is what
// publish.Config.Refused must call.
func (r *Relay) Refused(_ context.Context, _ *publish.Refusal) error {
	return errors.New("dead letters are not kept yet")
}
