package deadletter

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestMarker(t *testing.T) {
	t.Parallel()
	a, b := NewMarker(), NewMarker()
	if a == b || len(a) != 32 || strings.Trim(a, "0123456789abcdef") != "" {
		t.Errorf("markers %q and %q, want 32 hex digits each, and not the same", a, b)
	}
}

func TestParseReplay(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]struct {
		id      int64
		replays int
	}{
		"1 1":                            {1, 1},
		"9223372036854775807 2147483647": {math.MaxInt64, math.MaxInt32},
	} {
		if id, replays, ok := ParseReplay([]byte(content)); !ok || id != want.id || replays != want.replays {
			t.Errorf("ParseReplay(%q) = %d, %d, %v", content, id, replays, ok)
		}
	}
	for _, content := range []string{
		"", " ", "1", "1 ", " 1", "1  1", "1 1 ", " 1 1", "1 1 1", "0 1", "1 0", "-1 1", "1 -1", "+1 1", "1 +1", "01 1", "1 01",
		"1 2147483648", "9223372036854775808 1", "x 1", "1 x", "1\t1", "1 1\n", "1 1\x00", "1_0 1", "0x1 1", "１ 1",
	} {
		if id, replays, ok := ParseReplay([]byte(content)); ok || id != 0 || replays != 0 {
			t.Errorf("ParseReplay(%q) = %d, %d, %v, want a refusal", content, id, replays, ok)
		}
	}
}

func FuzzParseReplay(f *testing.F) {
	f.Add([]byte("17 2"))
	f.Fuzz(func(t *testing.T, content []byte) {
		if id, replays, ok := ParseReplay(content); ok && (id < 1 || replays < 1) {
			t.Errorf("ParseReplay(%q) = %d, %d", content, id, replays)
		}
	})
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                         "",
		"a b":                      "a b",
		"a\x00b\nc\x1b[31md\u009b": "a b c [31md ",
		"a\xffb":                   "a\ufffdb",
		"größer…":                  "größer…",
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
	for _, r := range []string{"a", "ö", "…", "\U0001F600", "\xff"} {
		got := clean(strings.Repeat(r, 5000))
		if n := utf8.RuneCountInString(got); n != maxText || !utf8.ValidString(got) {
			t.Errorf("5000 of %q are cut to %d characters", r, n)
		}
	}
	if got := ascii("größer\n…"); got != "gr??er ?" {
		t.Errorf("ascii gives %q", got)
	}
}

func TestMicros(t *testing.T) {
	t.Parallel()
	for _, at := range []time.Time{
		time.Unix(0, 0), time.Unix(-1, 999_999_000), time.Date(2026, 1, 2, 3, 4, 5, 678_901_000, time.UTC),
		time.Date(-4000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(200_000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		n, ok := micros(at).(int64)
		if got := TimeOf(&n); !ok || !got.Equal(at) {
			t.Errorf("%v comes back as %v", at, got)
		}
	}
	for _, at := range []time.Time{{}, time.Unix(math.MinInt64/2, 0), time.Unix(math.MaxInt64/2, 0)} {
		if got := micros(at); got != nil {
			t.Errorf("%v is stored as %v", at, got)
		}
	}
	if got := TimeOf(nil); !got.IsZero() {
		t.Errorf("NULL is %v", got)
	}
}

func TestBulk(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int]time.Duration{0: 0, 1000: 0, 1 << 20: 4 * time.Second, 16 << 20: 64 * time.Second} {
		if got := bulk(bytes); got != want {
			t.Errorf("%d bytes may take %v longer, want %v", bytes, got, want)
		}
	}
}

func TestInStates(t *testing.T) {
	t.Parallel()
	for want, states := range map[string][]State{
		"":                                    nil,
		" AND state = 'dead'":                 {Dead, Dead},
		" AND false":                          {"' OR true OR '"},
		" AND state IN ('dead', 'discarded')": {Discarded, "x", Dead},
	} {
		if got := inStates(states); got != want {
			t.Errorf("inStates(%q) = %q, want %q", states, got, want)
		}
	}
}
