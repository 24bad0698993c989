package relay

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// However many rows become dead letters, the log gets a line a second, which counts
// them all and shows neither key nor payload.
func TestDeadLettersAreSaidOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, nil))
		var b burials
		letter := &deadletter.Letter{
			MessageID: []byte(strings.Repeat("i", 1000)), Topic: "t", Key: []byte("a-key"), Value: []byte("a-payload"),
			Reason: deadletter.TooLarge, Error: "why",
		}
		for range 1000 {
			b.say(log, letter)
			b.rest(log)
		}
		if n := strings.Count(text.String(), "\n"); n != 1 {
			t.Errorf("%d lines in an instant", n)
		}
		time.Sleep(time.Second)
		b.rest(log)
		b.rest(log)
		got := text.String()
		if strings.Count(got, "\n") != 2 || !strings.Contains(got, "more=999") || strings.Contains(got, "a-key") || strings.Contains(got, "a-payload") {
			t.Errorf("the log says %s", got)
		}
		if len(got) > 1000 || !strings.Contains(got, "reason=too_large") || !strings.Contains(got, "topic=t") || !strings.Contains(got, "err=why") {
			t.Errorf("the log says %s", got)
		}
	})
}

// A lane gives back only a number for the table of its row.
func TestTablesByNumber(t *testing.T) {
	t.Parallel()
	r := &Relay{}
	for _, name := range []string{"orders", "Bills"} {
		r.cfg.Spec.Tables = append(r.cfg.Spec.Tables, catalog.TableSpec{Name: catalog.TableName{Schema: "public", Name: name}})
	}
	for name, want := range map[string]string{"orders": "public.orders", "Bills": `public."Bills"`, "bills": ""} {
		if got := r.table(r.source("public", name)); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// Rows are held from the lowest up, by a marker or by a place in the log.
func TestHolds(t *testing.T) {
	t.Parallel()
	h := newHolds()
	want := func(seq uint64, pending int) {
		t.Helper()
		if got, any := h.oldest(); got != seq || any != (seq != 0) {
			t.Errorf("held from %d (%v), want %d", got, any, seq)
		}
		if got := h.pending(); got != pending {
			t.Errorf("%d wait for nothing but their marker, want %d", got, pending)
		}
	}
	want(0, 0)
	h.await(7, marker{7}, false)
	h.await(3, marker{3}, true)
	h.awaitPosition(5, 0x500)
	want(3, 1)
	h.written(marker{7})
	h.written(marker{8}) // not awaited
	want(3, 2)
	if !h.came(marker{3}) || h.came(marker{3}) || h.came(marker{9}) {
		t.Error("a marker comes once, if it is awaited")
	}
	want(5, 1)
	h.reached(0x4ff)
	want(5, 1)
	h.reached(0x500)
	h.reached(0x100) // an answer that was late
	want(7, 1)
	h.came(marker{7})
	want(0, 0)
	h.await(8, marker{8}, false)
	want(8, 0)
}
