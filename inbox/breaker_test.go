package inbox

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func testBreaker() *breaker {
	return newBreaker(Breaker{Failures: 6, Keys: 3, Probe: time.Second, ProbeMax: 4 * time.Second}, time.Now)
}

// opened is a breaker that opens now.
func opened(t *testing.T) *breaker {
	t.Helper()
	b := testBreaker()
	for n := range 6 {
		open, opens := b.failed(strconv.Itoa(n % 3))
		if last := n == 5; open != last || opens != last {
			t.Fatalf("failure %d: open %v, opens %v", n+1, open, opens)
		}
	}
	return b
}

func TestBreakerNeedsKeys(t *testing.T) {
	b := testBreaker()
	for range 100 {
		if open, _ := b.failed("one"); open {
			t.Fatal("one key that fails is one key that fails")
		}
	}
	b.failed("two")
	if open, _ := b.failed("three"); !open {
		t.Error("closed though three keys have failed and none succeeded")
	}
}

func TestBreakerForgetsWithSuccess(t *testing.T) {
	b := testBreaker()
	for n := range 100 {
		if open, _ := b.failed(strconv.Itoa(n)); open {
			t.Fatal("open though some succeed")
		}
		if n%5 == 4 && b.succeeded() {
			t.Fatal("closed what was not open")
		}
	}
	off := newBreaker(Breaker{Failures: 1, Keys: 1, Off: true}, time.Now)
	if open, opens := off.failed("a"); open || opens {
		t.Error("a breaker that is off has opened")
	}
}

// One probe at a time, after pauses that double when probes fail, however many
// deliveries that were under way fail as well; a probe that neither fails nor succeeds
// (a duplicate) does not lengthen them.
func TestBreakerProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := opened(t)
		for range 15 {
			b.failed("under way")
		}
		probe := func(want time.Duration, end func()) {
			t.Helper()
			start := time.Now()
			leave, err := b.enter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := time.Since(start); got != want {
				t.Errorf("a pause of %v, want %v", got, want)
			}
			end()
			leave()
		}
		fail := func() { b.failed("a") }
		probe(time.Second, fail)
		probe(2*time.Second, func() {})
		probe(0, func() {})
		probe(0, fail)
		probe(4*time.Second, fail)
		probe(4*time.Second, fail)

		entered := make(chan struct{})
		first, err := b.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			go func() {
				leave, err := b.enter(t.Context())
				if err == nil {
					leave()
				}
				entered <- struct{}{}
			}()
		}
		synctest.Wait()
		select {
		case <-entered:
			t.Error("two are tried at the same time")
		default:
		}
		if !b.succeeded() || b.isOpen() {
			t.Error("a success does not close the breaker")
		}
		for range 3 {
			<-entered
		}
		first()
		probe(0, func() {})
	})
}

func TestBreakerGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := opened(t)
		for range 2 { // in the pause, and for the turn
			ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := b.enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("enter = %v", err)
			}
			stop()
		}
		leave, err := b.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		if _, err := b.enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("enter while another is tried = %v", err)
		}
		leave()
	})
}
