package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/broker"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// The session begins only if the slot is still ours, at the server that the
// replication connection is to.
func TestBeginOnlyWithTheSlot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*fakeCatalog)
		want   error
	}{
		"ours":           {func(*fakeCatalog) {}, nil},
		"another has it": {func(f *fakeCatalog) { f.thief = 99 }, ErrSlotChanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelay(t, newBrokers(), io.Discard)
			server := newFakeServer(t, r)
			s, _ := acquired(t, r, server)
			server.set(c.change)
			if err := s.begin(t.Context()); !errors.Is(err, c.want) {
				t.Fatalf("begin = %v, want %v", err, c.want)
			}
			if began := len(server.row.saved) > 0; began != (c.want == nil) {
				t.Errorf("the position was recorded: %v", server.row.saved)
			}
		})
	}
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	s, _ := acquired(t, r, server)
	s.server.Timeline = 2 // the ordinary connection is to the server that was promoted
	if err := s.begin(t.Context()); !errors.Is(err, ErrSlotChanged) || len(server.row.saved) > 0 {
		t.Errorf("begin = %v with the connections to two servers", err)
	}
}

// A slot that stands further on than where it was left was moved by somebody else.
// That is told with the range; how sure it is depends on how it was left.
func TestMovedSlotIsTold(t *testing.T) {
	t.Parallel()
	const before = slotAt - 0x100
	for name, c := range map[string]struct {
		row  slotRow
		last resumePoint
		want string
	}{
		"this process confirmed less": {
			slotRow{confirmed: "0/0800", recorded: time.Unix(7, 0)}, resumePoint{confirmed: before, recorded: time.Unix(7, 0)}, "level=ERROR msg=\"slot s was moved",
		},
		"this process confirmed it": {
			slotRow{confirmed: "0/0800", recorded: time.Unix(7, 0)}, resumePoint{confirmed: slotAt, recorded: time.Unix(7, 0)}, "",
		},
		"another relay stopped there": {
			slotRow{confirmed: slotAt.String(), recorded: time.Unix(9, 0), clean: true}, resumePoint{confirmed: before, recorded: time.Unix(7, 0)}, "",
		},
		"it was left before": {
			slotRow{confirmed: before.String(), clean: true}, resumePoint{}, "level=ERROR msg=\"slot s was moved",
		},
		"nobody knows": {
			slotRow{confirmed: before.String()}, resumePoint{}, "level=WARN msg=\"slot s stands at 0/1000",
		},
		"another relay crashed": {
			slotRow{confirmed: before.String(), recorded: time.Unix(9, 0)}, resumePoint{confirmed: before, recorded: time.Unix(7, 0)}, "not exact",
		},
		"first start": {slotRow{confirmed: "0/0"}, resumePoint{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logBuffer
			r := newRelay(t, newBrokers(), &log)
			server := newFakeServer(t, r)
			c.row.history = "h"
			server.row, r.resumed = c.row, c.last
			s, _ := acquired(t, r, server)
			if err := s.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			text := log.String()
			if c.want == "" && strings.Contains(text, "slot s") || !strings.Contains(text, c.want) {
				t.Errorf("told: %s", text)
			}
			if c.want != "" && !strings.Contains(text, "after="+before.String()+" up_to="+slotAt.String()) {
				t.Errorf("the range is not told: %s", text)
			}
		})
	}
}

// What this process knows of the slot outlives a session that could not begin.
func TestRememberOnlyWhatWasRecorded(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	r.resumed = resumePoint{confirmed: slotAt - 0x100, recorded: time.Unix(1, 0)}
	s, _ := acquired(t, r, server)
	server.set(func(f *fakeCatalog) { f.thief = 99 })
	if err := s.live(t.Context()); err == nil {
		t.Fatal("begins though another connection has the slot")
	}
	if r.resumed.confirmed != slotAt-0x100 {
		t.Errorf("believes to have confirmed %s", r.resumed.confirmed)
	}
}

// What keeps a leader from being ready is not what keeps a standby from it.
func TestStandbyIsReady(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	for _, source := range []string{problemPostgres, problemKafka, problemHalt, problemStuck} {
		r.state.fail(source, "gone")
	}
	server.thief = 99
	looks := 0
	var problems []string
	server.onSlot = func(f *fakeCatalog) {
		if looks++; looks == 2 {
			var out Status
			r.state.fill(&out)
			problems = out.Problems
			f.thief = 0
		}
	}
	held := catalog.Slot{Name: "s", Active: true, Holder: catalog.Holder{PID: 99}}
	if _, err := r.free(t.Context(), server.connect(t), held); err != nil {
		t.Fatal(err)
	}
	if len(problems) > 0 {
		t.Errorf("the standby is not ready: %q", problems)
	}
}

// A standby that could not take over is not ready and leaves a free slot alone,
// until it could.
func TestStandbyThatIsNotFit(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	server.thief, server.broken = 99, true
	freed := make(chan error, 1)
	db := server.connect(t)
	go func() {
		_, err := r.free(t.Context(), db, catalog.Slot{Name: "s", Active: true, Holder: catalog.Holder{PID: 99}})
		freed <- err
	}()
	waitFor(t, func() bool {
		var out Status
		r.state.fill(&out)
		return out.Role == RoleStandby && strings.Contains(strings.Join(out.Problems, "\n"), "publication p does not exist")
	})
	server.set(func(f *fakeCatalog) { f.thief = 0 })
	waitFor(t, func() bool {
		var out Status
		r.state.fill(&out)
		return out.Holder == "nobody"
	})
	select {
	case err := <-freed:
		t.Fatalf("would take the slot (%v)", err)
	default:
	}
	server.set(func(f *fakeCatalog) { f.broken = false })
	if err := <-freed; err != nil {
		t.Fatal(err)
	}
}

// Rows that are committed while the publication is broken are gone for the stream,
// up to the moment when it is whole again and not only up to where the relay had
// read. That is told, also when the session ends in between.
func TestGapIsTold(t *testing.T) {
	t.Parallel()
	for name, reconnect := range map[string]bool{"in one session": false, "over two sessions": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logBuffer
			r := newRelay(t, newBrokers(), &log)
			r.held = true
			server := newFakeServer(t, r)
			s, _ := acquired(t, r, server)
			if err := s.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			server.set(func(f *fakeCatalog) { f.broken = true })
			if err := s.tables(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s.gate.wait() == nil {
				t.Error("reading goes on without the publication")
			}
			server.set(func(f *fakeCatalog) { f.broken, f.walEnd = false, 0x5000 })
			if reconnect {
				s.close(t.Context())
				s, _ = acquired(t, r, server)
				if err := s.begin(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else if err := s.tables(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s.gate.wait() != nil {
				t.Error("reading does not go on")
			}
			if text := log.String(); strings.Count(text, "after=0/1000 up_to=0/5000") != 1 {
				t.Errorf("the range is not told: %s", text)
			}
		})
	}
}

// The publication is looked at once more when the slot is ours: a standby may have
// waited long since the look before.
func TestPublicationIsCheckedWithTheSlot(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	server := newFakeServer(t, r)
	s, _ := acquired(t, r, server)
	server.set(func(f *fakeCatalog) { f.broken = true })
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.gate.wait() == nil {
		t.Error("reads without the publication")
	}
}

// A gap that the checks before a session find is one as well.
func TestGapBetweenSessions(t *testing.T) {
	t.Parallel()
	var log logBuffer
	r := newRelay(t, newBrokers(), &log)
	gap := &catalog.CheckError{Check: "publication", Problem: "it is gone", Class: catalog.Configuration, Gap: true}
	if err := r.gapped(gap); err.Error() != gap.Error() {
		t.Errorf("before the first session: %v", err)
	}
	server := newFakeServer(t, r)
	s, _ := acquired(t, r, server)
	r.held = true
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.close(t.Context())
	if err := r.gapped(ErrDeposed); err.Error() != ErrDeposed.Error() {
		t.Errorf("another fault became %v", err)
	}
	if err := r.gapped(gap); !strings.Contains(err.Error(), "after 0/1000") || classify(err) != classPermanent {
		t.Errorf("the range is not named: %v", err)
	}
	server.set(func(f *fakeCatalog) { f.walEnd = 0x5000 })
	s, _ = acquired(t, r, server)
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); strings.Count(text, "after=0/1000 up_to=0/5000") != 1 {
		t.Errorf("the range is not told: %s", text)
	}
}

// Kafka that answers again is not blamed while Postgres is away.
func TestKafkaIsBack(t *testing.T) {
	t.Parallel()
	r := newRelay(t, newBrokers(), io.Discard)
	r.cfg.Catalog.ConnString = "postgres://relay@127.0.0.1:1/shop?sslmode=disable"
	r.failed(&broker.Error{Op: "reach kafka", Err: io.EOF})
	_, err := r.open(t.Context())
	if err == nil {
		t.Fatal("opens without a database")
	}
	r.failed(err)
	var out Status
	r.state.fill(&out)
	if len(out.Problems) != 1 || !strings.HasPrefix(out.Problems[0], problemPostgres) {
		t.Errorf("problems are %q", out.Problems)
	}
}

// To create a slot waits for every open transaction, which may take long.
func TestAliveWhileInitWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{}, nil, nil, nil, slog.New(slog.DiscardHandler), nil)
		r.cfg.Init = func(ctx context.Context, _ *catalog.DB) error {
			wait(ctx, 2*watchdog)
			if !r.Alive() {
				t.Error("counts as dead")
			}
			return ErrDeposed
		}
		if _, err := r.acquire(t.Context(), nil); !errors.Is(err, ErrDeposed) {
			t.Errorf("acquire = %v", err)
		}
		wait(t.Context(), 2*watchdog)
		if r.Alive() {
			t.Error("still counts as alive")
		}
	})
}
