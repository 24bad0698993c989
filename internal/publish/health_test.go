package publish_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// TestFrozenBrokerIdle: an idle publisher knows within ten seconds that the broker
// does not answer, and within five that it does again.
func TestFrozenBrokerIdle(t *testing.T) {
	m := newModel("t", 1)
	var frozen atomic.Bool
	frozen.Store(true)
	m.pingFn = func(ctx context.Context) error {
		if !frozen.Load() {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	run(t, publish.Config{}, m, func(r *rig) {
		r.settle(10 * time.Second)
		if p := r.p.Snapshot().Problems(); len(p) != 1 || !strings.Contains(p[0], "kafka does not answer") {
			t.Errorf("problems after ten seconds: %v", p)
		}
		frozen.Store(false)
		r.settle(4 * time.Second)
		if p := r.p.Snapshot().Problems(); len(p) != 0 {
			t.Errorf("problems four seconds after: %v", p)
		}
	})
}

// TestFrozenBrokerBusy: the same with a request under way.
func TestFrozenBrokerBusy(t *testing.T) {
	m := newModel("t", 1)
	run(t, publish.Config{}, m, func(r *rig) {
		hold := make(chan struct{})
		m.topics["t"][0].hold = hold
		r.put(1)
		r.settle(9 * time.Second)
		if p := r.p.Snapshot().Problems(); len(p) != 1 || !strings.Contains(p[0], "t[0]") {
			t.Errorf("problems after nine seconds: %v", p)
		}
		r.settle(30 * time.Second)
		if p := r.p.Snapshot().Problems(); len(p) == 0 {
			t.Error("no problem after forty seconds")
		}
		close(hold)
		r.settle(4 * time.Second)
		if p := r.p.Snapshot().Problems(); len(p) != 0 {
			t.Errorf("problems four seconds after: %v", p)
		}
		r.wantValues("t", 0, "0")
	})
}

// TestOneFailedProbe: in a cluster it may be one broker's.
func TestOneFailedProbe(t *testing.T) {
	m := newModel("t", 1)
	n := 0
	m.pingFn = func(context.Context) error {
		if n++; n%2 == 0 {
			return errors.New("refused")
		}
		return nil
	}
	run(t, publish.Config{}, m, func(r *rig) {
		for range 20 {
			r.settle(time.Second)
			if p := r.p.Snapshot().Problems(); len(p) != 0 {
				t.Fatalf("problems: %v", p)
			}
		}
	})
}
