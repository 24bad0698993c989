package inboxkafka

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// The messages of a key come one after the other, also when one of them has to wait; those
// of other keys, of other partitions and without key do not wait for it.
func TestLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(10)
		one, other := newPartition("t", 0, 0, 10), newPartition("t", 1, 0, 10)
		message := func(offset int64, key string) inbox.Message {
			m := inbox.Message{Offset: offset}
			if key != "" {
				m.Key = []byte(key)
			}
			return m
		}
		take := func(want ...int64) (taken []*lane) {
			t.Helper()
			synctest.Wait()
			for _, offset := range want {
				select {
				case next := <-l.ready:
					if got := next.messages[0].Offset; got != offset {
						t.Fatalf("message %d is next, want %d", got, offset)
					}
					taken = append(taken, next)
				default:
					t.Fatalf("message %d is not ready", offset)
				}
			}
			if len(l.ready) > 0 {
				t.Fatalf("%d more are ready", len(l.ready))
			}
			return taken
		}
		l.add(one, message(1, "a"))
		l.add(one, message(2, "a"))
		l.add(one, message(3, "b"))
		l.add(other, message(4, "a"))
		l.add(one, message(5, ""))
		l.add(one, message(6, ""))
		taken := take(1, 3, 4, 5, 6)
		l.again(taken[0], time.Second)
		for _, done := range taken[1:] {
			l.settled(done)
		}
		take()
		time.Sleep(time.Second) //nolint:forbidigo // the clock of synctest
		taken = take(1)
		l.settled(taken[0])
		taken = take(2)
		l.add(one, message(7, "a"))
		take()
		l.settled(taken[0])
		l.settled(take(7)[0])
		take()
		if len(l.keys) > 0 {
			t.Errorf("%d lanes are kept", len(l.keys))
		}
	})
}
