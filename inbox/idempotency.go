package inbox

import (
	"crypto/sha256"
	"encoding/hex"
)

// IdempotencyKey names the effect of a message on something outside the database: send
// it as the Idempotency-Key of a request, or as whatever the other side recognises a
// repeat by. A transaction cannot take such an effect back, and a handler whose commit
// fails runs again; the other side then sees the same key again and must answer as it
// did the first time.
//
// The key is 64 hexadecimal digits, the SHA-256 of consumer, a zero byte and messageID.
// It stays the same in every process and in every version of this package. Two effects
// of one message need two keys: append a suffix of your own to consumer.
func IdempotencyKey(consumer, messageID string) string {
	sum := sha256.Sum256([]byte(consumer + "\x00" + messageID))
	return hex.EncodeToString(sum[:])
}
