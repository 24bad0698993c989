package relay

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// ends runs a session until it ends by itself.
func ends(t *testing.T, s *session) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := s.run(ctx)
	s.r.publisher.End()
	s.close(context.WithoutCancel(ctx))
	if ctx.Err() != nil {
		t.Fatalf("the session goes on: %v", err)
	}
	return err
}

// Who may not write a dead letter since another has the slot is deposed, whether the
// watcher knows it or not. It has not halted: another one goes on.
func TestRefusedLetterEndsTheSession(t *testing.T) {
	t.Parallel()
	var log logBuffer
	s, box, _, server := kept(t, &log)
	box.fails = []error{catalog.ErrNotHolder}
	server.begin(0x2000)
	server.nameless(0x1f00, "bad")
	if err := ends(t, s); !errors.Is(err, ErrDeposed) {
		t.Errorf("the session ends with %v, want ErrDeposed", err)
	}
	if strings.Contains(log.String(), "halted") {
		t.Errorf("it says:\n%s", log.String())
	}
}

// A connection that was lost and leads to another server then, such as a standby that is
// behind, is asked nothing.
func TestStoreOfAnotherServerIsNotAsked(t *testing.T) {
	t.Parallel()
	s, box, _, server := kept(t, io.Discard)
	box.gone, box.astray = true, true
	asked := box.asked
	server.begin(0x2000)
	server.logical(0x1e00, 1, "cdc-relay/replay", "1 1")
	server.nameless(0x1f00, "bad")
	if err := ends(t, s); !errors.Is(err, ErrSlotChanged) {
		t.Errorf("the session ends with %v, want ErrSlotChanged", err)
	}
	if box.asked != asked || len(box.arrived) > 0 {
		t.Errorf("asked for %d letters, given %d", box.asked-asked, len(box.arrived))
	}
}
