package publish_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// keeps says what becomes a dead letter in a world.
type keeps struct {
	on       bool
	attempts int
	names    bool
	poison   int    // one row in so many is refused, 0 none
	fails    []bool // how the store answers, one after the other
	latency  time.Duration
}

// store is the table of dead letters. Only the session that holds the slot writes to
// it, as the real one sees to: its pid is looked at in the same statement.
type store struct {
	mu     sync.Mutex
	holder *int
	rows   map[position.Position]letter
	known  map[position.Position]bool // what was there when the session began
	fails  []bool
}

type letter struct {
	id    int
	maybe bool
}

var errNotHolder = errors.New("the slot is not ours")

// begin has a relay hold the slot, and reads what there is.
func (s *store) begin(r *relay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holder, s.known = new(int), map[position.Position]bool{}
	for pos := range s.rows {
		s.known[pos] = true
	}
	r.holder.Store(s.holder)
}

func (s *store) has(id int) bool {
	_, ok := s.letter(id)
	return ok
}

func (s *store) letter(id int) (letter, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.rows {
		if l.id == id {
			return l, true
		}
	}
	return letter{}, false
}

func (s *store) put(holder *int, f *publish.Refusal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != holder {
		return errNotHolder
	}
	if len(s.fails) > 0 {
		fails := s.fails[0]
		if s.fails = s.fails[1:]; fails {
			return errStore
		}
	}
	id, err := strconv.Atoi(string(f.Value))
	if err != nil {
		return err
	}
	s.rows[f.Position] = letter{id: id, maybe: f.MayBePublished}
	return nil
}

// config is the configuration of a process.
func (w *world) config(r *relay) publish.Config {
	c := publish.Config{Resume: true, MaxMessageBytes: w.s.maxMessage}
	k := w.s.keeps
	if !k.on {
		return c
	}
	if w.store.rows == nil {
		w.store.rows, w.store.fails = map[position.Position]letter{}, k.fails
		w.m.names = k.names
		w.m.refuse = func(v string) bool {
			id, err := strconv.Atoi(v)
			return err == nil && k.poison > 0 && id%k.poison == 0
		}
	}
	c.DeadLetter, c.MaxAttempts = true, k.attempts
	c.Refused = func(ctx context.Context, f *publish.Refusal) error {
		holder := r.holder.Load()
		if ctx.Err() != nil { // Else the holder is the one of the call's session.
			return ctx.Err()
		}
		if err := wait(ctx, nil, k.latency); err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		return w.store.put(holder, f)
	}
	return c
}

// judge compares a row that may be on the topic, in the dead letters, or in both.
func (w *world) judge(id, copies int, repeats bool) error {
	l, dead := w.store.letter(id)
	k := w.s.keeps
	switch {
	case !dead:
		return nil
	case k.attempts == 0 && (k.poison == 0 || id%k.poison != 0):
		return fmt.Errorf("row %d is a dead letter without reason", id)
	case copies > 0 && !l.maybe && !repeats:
		return fmt.Errorf("row %d is a dead letter and on the topic", id)
	}
	return nil
}

func drawKeeps(t *rapid.T) keeps {
	return keeps{
		on:       true,
		attempts: rapid.IntRange(0, 3).Draw(t, "attempts"),
		names:    rapid.Bool().Draw(t, "names"),
		poison:   rapid.SampledFrom([]int{0, 3, 7}).Draw(t, "poison"),
		fails:    rapid.SliceOfN(rapid.Bool(), 0, 8).Draw(t, "store fails"),
		latency:  time.Duration(rapid.IntRange(0, 5).Draw(t, "store latency")) * time.Millisecond,
	}
}

// TestLivesWithDeadLetters: whatever requests and the store meet, and whenever a process
// is killed or connects again, every row is on the topic or a dead letter, and both only
// if the letter says that it may be. The others are in order, and there once.
func TestLivesWithDeadLetters(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawLives(rt, decidedSoon(), append([]string{"reconnect", "kill"}, kills...))
		s.keeps = drawKeeps(rt)
		if err := live(t, s, false, false); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestLivesWithDeadLettersAndZombies adds what lands late and processes that write on:
// no row is lost, and no alarm is raised.
func TestLivesWithDeadLettersAndZombies(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawLives(rt, append(decidedSoon(), requestLate, requestLate, producerGone),
			append([]string{"zombie", "zombie", "end zombie", "retention", "forget", "grow"}, kills...))
		s.keeps = drawKeeps(rt)
		if err := live(t, s, true, false); err != nil {
			rt.Fatal(err)
		}
	})
}
