package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Rows of one COPY share an LSN and are told apart by their index; a new LSN and a new transaction
// start over.
func TestPositionsOfRows(t *testing.T) {
	t.Parallel()
	d := dispatcher{pos: position.Position{Commit: 0x900}}
	var got []string
	for _, lsn := range []pglogrepl.LSN{0x100, 0x200, 0x200, 0x200, 0x300} {
		d.advance(lsn, position.Row)
		got = append(got, fmt.Sprintf("%s/%d", d.pos.LSN, d.pos.Index))
	}
	want := "0/100/0 0/200/0 0/200/1 0/200/2 0/300/0"
	if have := strings.Join(got, " "); have != want {
		t.Errorf("got positions %s, want %s", have, want)
	}
	d.pos = position.Position{Commit: 0xa00}
	d.advance(0x300, position.Row)
	if d.pos.Index != 0 {
		t.Errorf("the first row of a transaction has index %d", d.pos.Index)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	server := func(state, routine string) error {
		return fmt.Errorf("read: %w", &wal.ServerError{SQLState: state, Routine: routine})
	}
	for _, c := range []struct {
		name string
		err  error
		want class
	}{
		{"network", errors.New("connection reset by peer"), classTransient},
		{"server away", &catalog.CheckError{Check: "connection", Class: catalog.Unreachable}, classTransient},
		{"server stops", server("57P01", "ProcessInterrupts"), classTransient},
		{"slot busy", server("55006", "ReplicationSlotAcquire"), classTransient},
		{"slot gone at start, which the next checks explain", server("42704", "ReplicationSlotAcquire"), classTransient},
		{"password", server("28P01", "auth_failed"), classPermanent},
		{"publication missing, which the next checks explain", server("42704", "get_publication_oid"), classTransient},
		{"publication skipped", server("55000", "LoadPublications"), classTransient},
		{"protocol", &wal.ProtocolError{Problem: "short message"}, classPermanent},
		{"a later primary", &publish.TimelineError{Timeline: 2}, classPermanent},
		{"another history", &publish.HistoryError{}, classTransient},
		{"table", &catalog.CheckError{Check: "table", Class: catalog.Configuration}, classPermanent},
		{"right", &catalog.CheckError{Check: "table", Class: catalog.Privilege}, classPermanent},
		{"slot lost", &catalog.CheckError{Check: "slot", Class: catalog.Configuration}, classFatal},
	} {
		if got := classify(c.err); got != c.want {
			t.Errorf("%s: got class %d, want %d", c.name, got, c.want)
		}
	}
}

// The same server error at the same place becomes a halt that names it; a shutdown, another place or
// another error does not.
func TestRepeatedServerError(t *testing.T) {
	t.Parallel()
	const op = "read the replication stream"
	fails := &wal.ServerError{Op: op, SQLState: "54000", Message: "invalid memory alloc request size", Where: "slot \"s\", LSN 0/1234"}
	var r repeats
	for range 2 * repeatLimit { // says nothing about the place: the stream has not begun
		full := &wal.ServerError{Op: "connect to db", SQLState: "53300", Message: "all walsenders are in use"}
		if err := r.stuck(full, 0x100); err != nil {
			t.Fatalf("tells to pass a transaction because there is no connection: %v", err)
		}
	}
	for i := range repeatLimit - 1 {
		if err := r.stuck(fails, 0x100); err != nil {
			t.Fatalf("halts at attempt %d: %v", i+1, err)
		}
	}
	if err := r.stuck(&wal.ServerError{Op: op, SQLState: "57P01"}, 0x100); err != nil {
		t.Fatalf("halts at a shutdown: %v", err)
	}
	for i := range repeatLimit {
		if err := r.stuck(fails, pglogrepl.LSN(0x100*(i+1))); err != nil {
			t.Fatalf("halts although the position moves: %v", err)
		}
	}
	_ = r.stuck(fails, 0x300)
	_ = r.stuck(ErrSlotChanged, 0x300) // another error between them
	err := r.stuck(fails, 0x300)
	if err == nil || !strings.Contains(err.Error(), "LSN 0/1234") || !strings.Contains(err.Error(), "0/300") {
		t.Errorf("got %v, want an error that names the place", err)
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	var b backoff
	for i := range 100 {
		got := b.next()
		if limit := min(backoffFirst<<min(i, 9), backoffCap); got < limit/2 || got > limit {
			t.Fatalf("pause %d is %v, want between half of %v and all of it", i, got, limit)
		}
	}
}

// The end of the WAL may lie behind the header of a page that has just begun.
func TestReached(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		confirmed, target pglogrepl.LSN
		want              bool
	}{
		{0x5000, 0x5000, true},
		{0x4fff, 0x5000, false},
		{0x6000, 0x6018, true},
		{0x6000, 0x6028, true},
		{0x5ff8, 0x6018, false},
		{0x6000, 0x6030, false},
	} {
		if got := reached(c.confirmed, c.target); got != c.want {
			t.Errorf("reached(%s, %s) = %v", c.confirmed, c.target, got)
		}
	}
}

func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gate
		if g.wait() != nil {
			t.Error("a new gate is not open")
		}
		g.close()
		g.close()
		passed := make(chan struct{})
		go func() {
			<-g.wait()
			close(passed)
		}()
		synctest.Wait()
		select {
		case <-passed:
			t.Error("passed a closed gate")
		default:
		}
		g.open()
		<-passed
	})
}

// A halt is said once and then every five minutes; other faults once until they are over.
func TestWhatIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newState()
		said := 0
		for range 41 { // 20 minutes of attempts
			if s.halt(problemHalt, "column is gone") {
				said++
			}
			if !wait(context.Background(), haltRetry) {
				t.Fatal("wait ended early")
			}
		}
		if said != 5 {
			t.Errorf("a halt of 20 minutes is said %d times, want 5", said)
		}
		if !s.fail(problemPostgres, "away") || s.fail(problemPostgres, "still away") {
			t.Error("a fault must be said when it begins and only then")
		}
		var out Status
		s.fill(&out)
		if out.Ready() || len(out.Problems) != 2 || !strings.Contains(out.Problems[1], "still away") {
			t.Errorf("problems are %q", out.Problems)
		}
		if !s.clear(problemPostgres) || s.clear(problemPostgres) {
			t.Error("clear must tell whether there was a fault")
		}
		s.clear(problemHalt)
		s.enter(RoleStandby, "process 1")
		out = Status{}
		s.fill(&out)
		if !out.Ready() || out.Holder != "process 1" {
			t.Errorf("a standby is not ready: %q", out.Problems)
		}
	})
}

func TestWaitEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if wait(ctx, time.Hour) {
		t.Error("wait goes on although the context has ended")
	}
}
