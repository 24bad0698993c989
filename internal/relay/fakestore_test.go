package relay

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/position"
)

// noStore is a database without the table of dead letters.
type noStore struct{ store }

func (noStore) check(context.Context) error {
	return &catalog.CheckError{Check: "dead letters", Class: catalog.Configuration}
}
func (noStore) held(context.Context, string, uint32) error { return nil }
func (noStore) close(context.Context) error                { return nil }

// letterBox is a table of dead letters in memory, whose failures a test gives.
type letterBox struct {
	mu      sync.Mutex
	letters map[position.Position]*deadletter.Letter
	byID    map[int64]*deadletter.Letter
	fails   []error // of the next attempts to write; nil succeeds
	lies    bool    // what fails is written all the same
	reading error   // what reading fails with
	locked  bool    // a replay is in the log and not yet to be seen
	astray  bool    // it is another server's
	gone    bool
	asked   int // for letters
	value   []byte
	end     pglogrepl.LSN
	old     int // letters to purge
	slow    int // most that one purge gets through

	arrived chan *deadletter.Letter // each that was to be written
	proceed chan struct{}           // if not nil, one for each
}

func newLetterBox() *letterBox {
	return &letterBox{
		letters: map[position.Position]*deadletter.Letter{}, byID: map[int64]*deadletter.Letter{},
		arrived: make(chan *deadletter.Letter, 1000), end: 0x2000,
	}
}

// keeps has a relay keep its dead letters in the box.
func (b *letterBox) keeps(r *Relay) {
	r.cfg.DeadLetters = DeadLetters{Enabled: true, MaxValueBytes: 1 << 10, Window: 100, Share: 1}
	r.breaker.window, r.breaker.share = 100, 1
	r.openStore = func(context.Context) (store, error) { return b, nil }
	r.checkStore = func(context.Context, *catalog.DB) error { return nil }
}

func (b *letterBox) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *letterBox) check(context.Context) error { return nil }

func (b *letterBox) held(context.Context, string, uint32) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.astray {
		return ErrSlotChanged
	}
	return nil
}

func (b *letterBox) load(_ context.Context, _, _ string, from pglogrepl.LSN) ([]deadletter.Held, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []deadletter.Held
	for _, l := range b.letters {
		if l.Position.Commit >= from {
			out = append(out, deadletter.Held{Position: l.Position, Marker: l.Marker})
		}
	}
	return out, nil
}

func (b *letterBox) recent(_ context.Context, _, _ string, window int) (deadletter.History, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []int64
	for _, l := range b.letters {
		all = append(all, l.Ordinal)
	}
	slices.Sort(all)
	return tell(all, int64(window)), nil
}

func (b *letterBox) put(ctx context.Context, _ uint32, l *deadletter.Letter) (string, error) {
	kept := *l
	kept.Key, kept.Value, kept.MessageID = slices.Clone(l.Key), slices.Clone(l.Value), slices.Clone(l.MessageID)
	b.arrived <- &kept
	if b.proceed != nil {
		select {
		case <-b.proceed:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var err error
	if len(b.fails) > 0 {
		err, b.fails = b.fails[0], b.fails[1:]
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil && !b.lies {
		return "", err
	}
	marker := b.write(&kept)
	if err != nil {
		return "", err
	}
	return marker, nil
}

func (b *letterBox) write(l *deadletter.Letter) string {
	if l.ID != 0 {
		old := b.byID[l.ID]
		if old.State == deadletter.Replayed && old.Replays == l.Replays {
			old.State, old.ReplayMarker, old.Reason = deadletter.Dead, l.Marker, l.Reason
		}
		return l.Marker
	}
	if old := b.letters[l.Position]; old != nil {
		return old.Marker
	}
	l.ID = int64(len(b.byID) + 1)
	b.letters[l.Position], b.byID[l.ID] = l, l
	return l.Marker
}

func (b *letterBox) get(_ context.Context, _ string, id int64) (*deadletter.Letter, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	l := b.byID[id]
	if l == nil || b.reading != nil {
		return nil, false, b.reading
	}
	out := *l
	if b.locked {
		out.State, out.Replays = deadletter.Dead, out.Replays-1
	}
	return &out, true, nil
}

func (b *letterBox) ahead(_ context.Context, _ string, id int64, _ pglogrepl.LSN) (next []*deadletter.Letter, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	for ; b.byID[id] != nil; id++ {
		out := *b.byID[id]
		next = append(next, &out)
	}
	return next, b.reading
}

func (b *letterBox) settled(ctx context.Context, slot string, id int64) (*deadletter.Letter, bool, error) {
	b.set(func() { b.locked = false })
	return b.get(ctx, slot, id)
}

func (b *letterBox) readValue(context.Context, *deadletter.Letter, string, string) ([]byte, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.value, b.value != nil, b.reading
}

func (b *letterBox) stats(context.Context, string) ([]deadletter.Stat, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	counts := map[deadletter.Reason]int64{}
	for _, l := range b.byID {
		counts[l.Reason]++
	}
	var out []deadletter.Stat
	for reason, n := range counts {
		out = append(out, deadletter.Stat{State: deadletter.Dead, Reason: reason, Count: n, Oldest: time.Unix(5, 0)})
	}
	return out, nil
}

// purge deletes at most slow letters before its context ends.
func (b *letterBox) purge(ctx context.Context, _ string, _ time.Time, limit int) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.slow == 0 {
		return 0, nil
	}
	if limit > b.slow {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	n := min(limit, b.old)
	b.old -= n
	return int64(n), nil
}

func (b *letterBox) walEnd(context.Context, string) (pglogrepl.LSN, error) { return b.end, nil }

func (b *letterBox) closed() bool { return b.gone }

func (b *letterBox) close(context.Context) error { return nil }

// wantLetter waits for a letter that is to be written.
func (b *letterBox) wantLetter(t *testing.T) *deadletter.Letter {
	t.Helper()
	select {
	case l := <-b.arrived:
		return l
	case <-time.After(10 * time.Second):
		t.Fatal("nothing becomes a dead letter")
		return nil
	}
}

// logical sends a message of pg_logical_emit_message.
func (w *walsender) logical(lsn pglogrepl.LSN, transactional byte, prefix, content string) {
	b := xlog(lsn).u8('M').u8(transactional).lsn(lsn).str(prefix).u32(uint32(len(content)))
	w.copy(append(b, content...))
}

// marked sends the transaction that has written a letter.
func (w *walsender) marked(commit pglogrepl.LSN, l *deadletter.Letter) {
	w.begin(commit)
	w.logical(commit-0x10, 1, deadletter.MarkerPrefix, l.Marker)
	w.commit(commit, commit+0x30)
}
