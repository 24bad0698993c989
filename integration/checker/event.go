package checker

import (
	"encoding/json"
	"hash/fnv"
	"math/rand/v2"
)

// event is the payload of a row.
type event struct {
	ID          string `json:"id"` // the message id
	Key         string `json:"key"`
	Number      int64  `json:"number"`
	Transaction string `json:"transaction"`
	Rows        int    `json:"rows"`        // of the transaction, without those that are rolled back
	RolledBack  bool   `json:"rolled_back"` // the row is written to be rolled back
	Poison      bool   `json:"poison"`      // the row is written so that no broker takes it
	Padding     string `json:"padding"`
}

func newEvent(id, key string, number int64, length int) event {
	return event{ID: id, Key: key, Number: number, Padding: padding(key, number, length)}
}

// parseEvent returns the event of a record's value, and whether it is as it was written.
func parseEvent(value []byte) (event, bool) {
	var e event
	if json.Unmarshal(value, &e) != nil {
		return e, false
	}
	return e, e.Padding == padding(e.Key, e.Number, len(e.Padding))
}

// padding makes text that another key or number does not have.
func padding(key string, number int64, length int) string {
	if length == 0 {
		return ""
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(key)) // Never fails.
	source := rand.New(rand.NewPCG(sum.Sum64(), uint64(number)))
	text := make([]byte, length)
	for i := range text {
		text[i] = "abcdefghijklmnopqrstuvwxyz012345"[source.Uint32()&31]
	}
	return string(text)
}
