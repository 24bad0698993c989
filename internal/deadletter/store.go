package deadletter

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

var errStub = errors.New("not there yet")

// NewMarker draws a marker.
func NewMarker() string { return "00000000000000000000000000000000" }

// ParseReplay reads the content of a logical message with [ReplayPrefix].
func ParseReplay(content []byte) (id int64, replays int, ok bool) { return 0, 0, false }

// Check checks that the relay can keep dead letters. The error is a *[catalog.CheckError].
func Check(ctx context.Context, db *catalog.DB) error { return errStub }

// Put writes a new dead letter.
func Put(ctx context.Context, db *catalog.DB, walsender uint32, l *Letter) (marker string, err error) {
	return "", errStub
}

// PutBack makes a replayed letter, whose replay was refused, dead again.
func PutBack(ctx context.Context, db *catalog.DB, walsender uint32, l *Letter) (marker string, err error) {
	return "", errStub
}

// Held is a position whose row is a dead letter, and the marker that follows it.
type Held struct {
	Position position.Position
	Marker   string
}

// Load returns the dead letters whose rows were committed at or after from, in the
// order of their positions.
func Load(ctx context.Context, db *catalog.DB, slot, systemID string, from pglogrepl.LSN) ([]Held, error) {
	return nil, errStub
}

// History is what the dead letters tell about the last rows of a slot.
type History struct {
	Total    int64   // how many rows had been decided at the last of them
	Ordinals []int64 // of those within the window, ascending
}

// Recent returns the dead letters among the last rows.
func Recent(ctx context.Context, db *catalog.DB, slot, systemID string, window int) (History, error) {
	return History{}, errStub
}

// Get returns one dead letter of the slot, whole.
func Get(ctx context.Context, db *catalog.DB, slot string, id int64) (*Letter, bool, error) {
	return nil, false, errStub
}

// ReadValue reads the payload of a row out of the outbox table, as the stream would have it.
func ReadValue(ctx context.Context, db *catalog.DB, table, idColumn, payloadColumn string, messageID []byte) (value []byte, found bool, err error) {
	return nil, false, errStub
}

// Stat counts the dead letters of one slot, state and reason.
type Stat struct {
	Slot   string
	State  State
	Reason Reason
	Count  int64
	Oldest time.Time // when the oldest of them was written
}

// Stats counts the dead letters of a slot, or of all with "".
func Stats(ctx context.Context, db *catalog.DB, slot string) ([]Stat, error) { return nil, errStub }

// Filter chooses dead letters; what is empty does not matter.
type Filter struct {
	Slot, Type, Topic, Aggregate string
	Reason                       Reason
	Since, Until                 time.Time // of Created; Until is not in it
	ID                           string    // message id
	Letters                      []int64
	States                       []State
}

// List returns dead letters without values, by id, beginning after that one.
func List(ctx context.Context, db *catalog.DB, f Filter, limit int, after int64) ([]Letter, error) {
	return nil, errStub
}

// Count counts what [List] returns.
func Count(ctx context.Context, db *catalog.DB, f Filter) (int64, error) { return 0, errStub }

// ReplayResult is what [Replay] did with one dead letter.
type ReplayResult struct {
	ID       int64
	Replayed bool          // false: it was not dead
	LSN      pglogrepl.LSN // of the message that tells the relay
}

// Replay gives dead letters back to the relay, all in one transaction.
func Replay(ctx context.Context, db *catalog.DB, ids []int64, topic string) ([]ReplayResult, error) {
	return nil, errStub
}

// Discard gives dead letters up and returns how many were dead.
func Discard(ctx context.Context, db *catalog.DB, ids []int64) (n int64, err error) { return 0, errStub }

// Purge deletes dead letters that were replayed or discarded before that time.
func Purge(ctx context.Context, db *catalog.DB, slot string, before time.Time, limit int) (n int64, err error) {
	return 0, errStub
}

// Confirmed returns the slot's confirmed position.
func Confirmed(ctx context.Context, db *catalog.DB, slot string) (pglogrepl.LSN, bool, error) {
	return 0, false, errStub
}
