package regress_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// The confirmed position moves under a steady load and on an idle outbox alike, long before the server would ask for it.
func TestPositionKeepsMoving(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.CreateTopic("order", 1)
	r := s.Start(testenv.Settings{"postgres.wal_sender_timeout": "60s"}) // The server asks after half of it.
	n := 0
	for phase, load := range map[string]func(){
		"200 rows a second": func() { s.insert(n+1, n+10, 0); n += 10 },
		"an idle outbox":    func() { s.Exec(`INSERT INTO public.noise SELECT repeat('x', 1000) FROM generate_series(1, 100)`) },
	} {
		var stood time.Duration
		moved, last := time.Now(), ""
		every(50*time.Millisecond, time.Duration(5**scale)*time.Second, func() {
			load()
			if now := s.OfSlot("confirmed_flush_lsn"); now != last {
				moved, last = time.Now(), now
			}
			stood = max(stood, time.Since(moved))
		})
		t.Logf("%s: the position stood still for at most %v", phase, stood.Round(time.Millisecond))
		if limit := 4 * time.Second; stood > limit {
			t.Errorf("%s: the position stood still for %v, want at most %v", phase, stood, limit)
		}
	}
	s.Stop(r)
}
