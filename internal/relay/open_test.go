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

// acquired returns a session that has the slot and does not know yet where to go on.
func acquired(t *testing.T, r *Relay, db *catalog.DB) *session {
	t.Helper()
	s, _ := started(t, r, db)
	return s
}

// fakeRelay returns a relay with a slot, a publication and a table.
func fakeRelay(t *testing.T, log io.Writer) *Relay {
	r := newRelay(t, newBrokers(), log)
	r.cfg.Spec = catalog.Spec{Slot: "s", Publication: "p", Tables: []catalog.TableSpec{
		{Name: catalog.TableName{Schema: "public", Name: "outbox"}, Required: []string{"id"}},
	}}
	return r
}

// Where to go on is read once the slot is ours: what was read before may be of
// another holder's time.
func TestBeginReadsWhatIsTrueNow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found *fakeCatalog
		want  error
	}{
		"as before":   {&fakeCatalog{holder: 1, confirmed: slotAt, walEnd: 0x2000}, nil},
		"moved":       {&fakeCatalog{holder: 1, confirmed: slotAt + 8, walEnd: 0x2000}, errSlotChanged},
		"another has": {&fakeCatalog{holder: 3, confirmed: slotAt, walEnd: 0x2000}, errSlotChanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := fakeRelay(t, io.Discard)
			s := acquired(t, r, openFakeCatalog(t, c.found))
			defer s.close(t.Context())
			if err := s.begin(t.Context()); !errors.Is(err, c.want) {
				t.Fatalf("begin = %v, want %v", err, c.want)
			}
			if c.want == nil && s.target != 0x2000 {
				t.Errorf("a single run would read up to %s, want 0/2000", s.target)
			}
			if began := len(c.found.saved) > 0; began != (c.want == nil) {
				t.Errorf("the position was recorded: %v", c.found.saved)
			}
		})
	}
}

// A slot that was moved while we were away is told, also when the first attempt to
// stream again fails.
func TestMovedSlotIsTold(t *testing.T) {
	t.Parallel()
	var log logBuffer
	r := fakeRelay(t, &log)
	r.resumed = resumePoint{systemID: "1", timeline: 1, confirmed: slotAt - 0x100, received: slotAt}
	found := &fakeCatalog{holder: 3, confirmed: slotAt, walEnd: 0x2000}
	s := acquired(t, r, openFakeCatalog(t, found))
	if err := s.begin(t.Context()); err == nil {
		t.Fatal("begins though another connection has the slot")
	}
	s.close(t.Context())
	found.set(func(f *fakeCatalog) { f.holder = 1 })
	s = acquired(t, r, openFakeCatalog(t, found))
	defer s.close(t.Context())
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); !strings.Contains(text, "moved by somebody else") || !strings.Contains(text, "after="+(slotAt-0x100).String()) {
		t.Errorf("not told: %s", text)
	}
}

// What keeps a leader from being ready is not what keeps a standby from it.
func TestStandbyIsReady(t *testing.T) {
	t.Parallel()
	r := fakeRelay(t, io.Discard)
	s, _ := begun(t, r)
	for _, source := range []string{problemPostgres, problemKafka, problemHalt, problemStuck, problemCatalog, problemTables} {
		r.state.fail(source, "gone")
	}
	s.close(t.Context())
	found := &fakeCatalog{holder: 3, confirmed: slotAt, walEnd: 0x2000}
	looks := 0
	var problems []string
	found.onSlot = func(f *fakeCatalog) {
		if looks++; looks == 2 {
			var out Status
			r.state.fill(&out)
			problems = out.Problems
			f.holder = 0
		}
	}
	db := openFakeCatalog(t, found)
	held := catalog.Slot{Name: "s", Active: true, Holder: catalog.Holder{PID: 3}}
	if _, err := r.free(context.Background(), db, held); err != nil {
		t.Fatal(err)
	}
	if len(problems) > 0 {
		t.Errorf("the standby is not ready: %q", problems)
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
			r := fakeRelay(t, &log)
			found := &fakeCatalog{holder: 1, confirmed: slotAt, walEnd: 0x2000}
			s := acquired(t, r, openFakeCatalog(t, found))
			if err := s.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			w := watcher{s: s}
			if err := w.tables(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s.gate.wait() == nil {
				t.Error("reading goes on without the publication")
			}
			found.set(func(f *fakeCatalog) { f.published, f.walEnd = true, 0x5000 })
			if reconnect {
				s.close(t.Context())
				s = acquired(t, r, openFakeCatalog(t, found))
				if err := s.begin(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else if err := w.tables(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer s.close(t.Context())
			if s.gate.wait() != nil {
				t.Error("reading does not go on")
			}
			if text := log.String(); strings.Count(text, "after=0/1000 up_to=0/5000") != 1 {
				t.Errorf("the range is not told: %s", text)
			}
		})
	}
}

// A gap that the checks before a session find is one as well.
func TestGapBetweenSessions(t *testing.T) {
	t.Parallel()
	var log logBuffer
	r := fakeRelay(t, &log)
	gap := &catalog.CheckError{Check: "publication", Problem: "it is gone", Class: catalog.Configuration, Gap: true}
	if err := r.gapped(gap); err.Error() != gap.Error() {
		t.Errorf("before the first session: %v", err)
	}
	found := &fakeCatalog{holder: 1, confirmed: slotAt, walEnd: 0x2000, published: true}
	s := acquired(t, r, openFakeCatalog(t, found))
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.close(t.Context())
	if err := r.gapped(errDeposed); err.Error() != errDeposed.Error() {
		t.Errorf("another fault became %v", err)
	}
	if err := r.gapped(gap); !strings.Contains(err.Error(), "after 0/1000") || classify(err) != classPermanent {
		t.Errorf("the range is not named: %v", err)
	}
	found.set(func(f *fakeCatalog) { f.walEnd = 0x5000 })
	s = acquired(t, r, openFakeCatalog(t, found))
	defer s.close(t.Context())
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
	r := fakeRelay(t, io.Discard)
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
			return errDeposed
		}
		if _, err := r.acquire(t.Context(), nil); !errors.Is(err, errDeposed) {
			t.Errorf("acquire = %v", err)
		}
		wait(t.Context(), 2*watchdog)
		if r.Alive() {
			t.Error("still counts as alive")
		}
	})
}
