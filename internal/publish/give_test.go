package publish

import (
	"context"
	"errors"
	"testing"
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
