package publish

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"
)

// TestGiveAfterSession: nobody is asked about a row of a session that is over, and whoever
// is asked can see at once that it has ended: what he looks up could be of the next one.
func TestGiveAfterSession(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	asked := 0
	p := &Publisher{cfg: Config{Refused: func(ctx context.Context, _ *Refusal) error {
		asked++
		end()
		return ctx.Err()
	}}}
	for range 2 {
		if err := p.give(t.Context(), &refused{session: &session{over: over}}); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
}

// TestRefusedBytesStay: what is in hand is not written over when its row has left.
func TestRefusedBytesStay(t *testing.T) {
	t.Parallel()
	b := &budget{limit: 1 << 20, share: 1 << 20}
	q := new(queue)
	r := encode(&Record{Key: []byte("key"), Value: []byte("value"), Time: time.Now()})
	c, buf := b.reserve(q, len(r.body))
	b.charge(q, rowBytes)
	r.chunk, r.body = c, append(buf, r.body...)
	q.push(r)
	f := q.at(0).refuse(nil, "t", ReasonTooLarge, nil)
	q.truncate(b, 0)
	_, buf = b.reserve(new(queue), 200)
	copy(buf[:200], bytes.Repeat([]byte("x"), 200))
	if string(f.Key) != "key" || string(f.Value) != "value" {
		t.Errorf("key %q, value %q", f.Key, f.Value)
	}
}
