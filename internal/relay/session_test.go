package relay

import (
	"io"
	"sync"
	"testing"

	"github.com/jackc/pglogrepl"
)

// Dispatcher and settler confirm at the same time. Neither may come with a position
// that the other has passed: the stream refuses it, and the session would end.
func TestSettleFromTwoGoroutines(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	s, server := begun(t, r)
	const commits = 20_000
	server.keepalive(slotAt + commits)
	if _, err := s.stream.Next(); err != nil { // may be confirmed now
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := s.settle(); err != nil {
					t.Errorf("settle: %v", err)
					return
				}
			}
		})
	}
	for i := range pglogrepl.LSN(commits) {
		if err := s.commit(slotAt + i + 1); err != nil {
			t.Errorf("commit: %v", err)
			break
		}
	}
	close(done)
	wg.Wait()
}
