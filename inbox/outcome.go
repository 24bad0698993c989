package inbox

import (
	"errors"
	"fmt"
	"time"
)

// Outcome is what became of a delivery.
type Outcome int

// The outcomes. All but Retry settle the message: its offset may be committed.
const (
	// Processed: the handler's effect is committed, and with it that the message is settled.
	Processed Outcome = iota
	// Duplicate: the message was settled before. It is no error.
	Duplicate
	// Retry: the message is not settled; deliver it again after [Result.After].
	Retry
	// DeadLettered: the message cannot be handled and waits for somebody's decision
	// (cdc-relay dlq --source inbox).
	DeadLettered
	// Parked: the message waits for another one of its key, and the runner will handle it.
	Parked
	// Stale: a later message of the key has been handled; this one is dropped.
	Stale
)

// String returns the outcome as metrics name it.
func (o Outcome) String() string {
	switch o {
	case Processed:
		return "processed"
	case Duplicate:
		return "duplicate"
	case Retry:
		return "retry"
	case DeadLettered:
		return "dead_lettered"
	case Parked:
		return "parked"
	case Stale:
		return "stale"
	}
	return fmt.Sprintf("outcome(%d)", int(o))
}

// Result is what [Processor.Process] has to say of a delivery.
type Result struct {
	Outcome Outcome
	// Attempts is how many deliveries of the message have failed, this one included.
	Attempts int
	// After is how long to wait before the next delivery; only with Retry.
	After time.Duration
	// Blocked says that the message has failed MaxDeliveries times and holds its key
	// ([Block]); only with Retry.
	Blocked bool
	// Err is why the message was not processed. It is nil for messages that were, for
	// duplicates, and for parked and stale ones.
	Err error
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks the error of a handler as one that will not pass, such as a payload
// that is not what it should be: the message becomes a dead letter at once. nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type retryAfterError struct {
	err   error
	after time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter marks the error of a handler with the time after which another delivery
// makes sense, in place of the backoff. The delivery counts as any that failed. nil stays
// nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(d, 0)}
}

// panicError is a handler's panic. Its text names the kind and not the value, which may
// hold anything.
type panicError struct {
	kind  string
	stack []byte
}

func (e *panicError) Error() string { return "panic: " + e.kind }

func isPermanent(err error) bool {
	_, ok := errors.AsType[*permanentError](err)
	return ok
}
