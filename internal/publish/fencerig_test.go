package publish

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// coordinator hands out epochs as KIP-360 says.
type coordinator struct {
	Broker // Nothing else is asked.

	mu      sync.Mutex
	current broker.Producer // ID 0 when the id is unknown
	before  broker.Producer // whose holder has raised the epoch to the current one
	next    int64
	asked   []broker.Producer // the producers named, in order
	errs    []error           // of the next requests, after which the epoch may be raised all the same
	lost    bool              // the answer of a request with an error: raised, or not
	hold    chan struct{}     // while not nil requests wait
}

func (c *coordinator) Ping(context.Context) error { return nil }

func (c *coordinator) InitTransactional(ctx context.Context, _ string, known broker.Producer) (broker.Producer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, known)
	if hold := c.hold; hold != nil {
		c.mu.Unlock()
		select {
		case <-hold:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	var err error
	if len(c.errs) > 0 {
		err, c.errs = c.errs[0], c.errs[1:]
	}
	if err != nil && !c.lost {
		return broker.Producer{}, err
	}
	got, refused := c.raise(known)
	if refused != nil {
		err = refused
	}
	return got, err
}

func (c *coordinator) raise(known broker.Producer) (broker.Producer, error) {
	switch {
	case c.current.ID == 0:
		c.next++
		c.current, c.before = broker.Producer{ID: 1000 + c.next}, nobody()
	case known.ID < 0:
		c.current.Epoch++
		c.before = nobody()
	case known == c.current:
		c.current.Epoch++
		c.before = known
	case known != c.before: // Else it is the same request again.
		return broker.Producer{}, kafka.ProducerFenced
	}
	return c.current, nil
}

// forget is what expiry does.
func (c *coordinator) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = broker.Producer{}
}

// fenceRig is a publisher with a transactional id and without lanes.
type fenceRig struct {
	*Publisher
	t   *testing.T
	c   *coordinator
	log bytes.Buffer

	lock  sync.Mutex
	alive bool
}

func (r *fenceRig) setAlive(alive bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.alive = alive
}

func runFence(t *testing.T, c *coordinator, test func(r *fenceRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &fenceRig{t: t, c: c, alive: true}
		var mu sync.Mutex
		p, err := New(Config{TransactionalID: "relay-1"}, c,
			slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return r.log.Write(b)
			}), nil)), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Publisher = p
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		test(r)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (r *fenceRig) begin() {
	r.Begin(Session{Alive: func() bool {
		r.lock.Lock()
		defer r.lock.Unlock()
		return r.alive
	}})
	synctest.Wait()
}

func (r *fenceRig) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// numbered is what the next batch of a partition carries; nil for nothing.
func (r *fenceRig) numbered(s *sequence) *broker.Producer {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, epoch, first, ok := r.number(s)
	if !ok {
		return nil
	}
	if first != s.next {
		r.t.Errorf("first = %d, want %d", first, s.next)
	}
	return &broker.Producer{ID: id, Epoch: epoch}
}

func (r *fenceRig) want(s *sequence, epoch int16, first int32) {
	r.t.Helper()
	got := r.numbered(s)
	if want := (broker.Producer{ID: 1001, Epoch: epoch}); got == nil || *got != want || s.next != first {
		r.t.Errorf("number = %v from %d, want %v from %d", got, s.next, want, first)
	}
}

func (r *fenceRig) wantNone(s *sequence) {
	r.t.Helper()
	if got := r.numbered(s); got != nil {
		r.t.Errorf("number = %v, want none", got)
	}
}

func (r *fenceRig) wantAsked(want ...broker.Producer) {
	r.t.Helper()
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if !slices.Equal(r.c.asked, want) {
		r.t.Errorf("asked with %v, want %v", r.c.asked, want)
	}
}

func (r *fenceRig) readable() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mayRead(time.Now())
}

func (r *fenceRig) problems() string { return strings.Join(r.Snapshot().Problems(), "; ") }

func epoch(n int16) broker.Producer { return broker.Producer{ID: 1001, Epoch: n} }

// known makes the transactional id one that has been used before.
func known() *coordinator { return &coordinator{current: epoch(4), next: 1} }
