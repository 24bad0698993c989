package outbox

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// lastTick is the time of the youngest id of this process, in ticks.
var lastTick atomic.Int64

// NewID returns a UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, 12 bits of the fraction of the
// millisecond (section 6.2, method 3), 62 random bits. Within a process each is greater than those before it, even
// when the clock goes back. Such ids enter an index at its end, where random ones touch a page each. It may be called
// from any goroutine.
func NewID() string { return newID(time.Now) }

// newID counts ticks of 1/4096 ms: a millisecond shifted by the 12 bits of its fraction.
func newID(now func() time.Time) string {
	t := now()
	ms := t.UnixMilli()
	tick := ms<<12 | int64(t.Sub(time.UnixMilli(ms)))<<12/int64(time.Millisecond)
	for {
		last := lastTick.Load()
		tick = max(tick, last+1)
		if lastTick.CompareAndSwap(last, tick) {
			break
		}
	}
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], uint64(tick>>12)<<16|0x7000|uint64(tick&0xfff))
	_, _ = rand.Read(id[8:]) // Never fails: the process ends if the system has no randomness.
	id[8] = id[8]&0x3f | 0x80

	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}
