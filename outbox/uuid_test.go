package outbox

import (
	"encoding/binary"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var v7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestNewIDHoldsTime(t *testing.T) {
	// Later than every other id of this process, so that the clock of the test counts.
	at := time.Now().Add(100 * 365 * 24 * time.Hour).Truncate(time.Millisecond).Add(500 * time.Microsecond)
	before := lastTick.Load()
	defer lastTick.Store(before)

	id := newID(func() time.Time { return at })
	if !v7.MatchString(id) {
		t.Fatalf("%s is no UUID of version 7", id)
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if err != nil {
		t.Fatal(err)
	}
	if ms := int64(binary.BigEndian.Uint64(raw) >> 16); ms != at.UnixMilli() {
		t.Errorf("it holds %d ms, not %d", ms, at.UnixMilli())
	}
	if fraction := binary.BigEndian.Uint16(raw[6:]) & 0xfff; fraction != 2048 {
		t.Errorf("it holds %d of 4096 of the millisecond, not half", fraction)
	}
	back := newID(func() time.Time { return at.Add(-time.Hour) })
	if back <= id {
		t.Errorf("with the clock an hour back, %s follows %s", back, id)
	}
}

func TestNewIDIsMonotonicAndUnique(t *testing.T) {
	const goroutines, each = 8, 2000
	ids := make([][]string, goroutines)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			for range each {
				ids[i] = append(ids[i], NewID())
			}
		})
	}
	wg.Wait()
	all := map[string]bool{}
	for _, list := range ids {
		if !slices.IsSorted(list) {
			t.Error("ids of one goroutine are not in their order")
		}
		for _, id := range list {
			all[id[:18]] = true // The time alone is different for each.
			if !v7.MatchString(id) {
				t.Fatalf("%s is no UUID of version 7", id)
			}
		}
	}
	if len(all) != goroutines*each {
		t.Errorf("%d ids hold %d times", goroutines*each, len(all))
	}
}
