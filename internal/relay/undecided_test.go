package relay

import (
	"io"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// Rows that no lane takes are refused while those before them are on their way: their
// share is that of all rows, not of those that happen to be decided.
func TestBreakerWaitsForRowsOnTheirWay(t *testing.T) {
	t.Parallel()
	s, box, kafka, server := kept(t, io.Discard)
	s.r.breaker.window, s.r.breaker.share, s.r.halt = 1000, 0.2, time.Hour
	running(t, s)
	const good, bad = 200, 25
	server.begin(0x9000)
	for i := range good {
		server.order(pglogrepl.LSN(0x2000+i), "good")
	}
	for i := range bad {
		server.nameless(pglogrepl.LSN(0x3000+i), "bad")
	}
	server.commit(0x9000, 0x9030)
	for range 19 {
		box.wantLetter(t)
	}
	sent := 0
	for sent < good {
		select {
		case <-kafka.arrived:
			kafka.acknowledge()
			sent = kafka.records("t")
		case <-time.After(10 * time.Millisecond):
			sent = kafka.records("t")
		}
	}
	for range bad - 19 {
		box.wantLetter(t)
	}
}

// Where the rows before are decided, and bad as well, it says so at once.
func TestBreakerWaitsForNothingElse(t *testing.T) {
	t.Parallel()
	s, box, _, server := kept(t, io.Discard)
	s.r.breaker.window, s.r.breaker.share, s.r.halt = 1000, 0.2, time.Hour
	running(t, s)
	server.begin(0x9000)
	for i := range 25 {
		server.nameless(pglogrepl.LSN(0x3000+i), "bad")
	}
	server.commit(0x9000, 0x9030)
	for range 19 {
		box.wantLetter(t)
	}
	began := time.Now()
	waitFor(t, func() bool { return len(s.r.Status().Problems) > 0 })
	if took := time.Since(began); took > undecidedPatience/2 {
		t.Errorf("halted after %v", took)
	}
	if len(box.arrived) > 0 {
		t.Error("another dead letter is written")
	}
}
