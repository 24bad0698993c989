package position_test

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/position"
)

// golden is the format as documented; consumers depend on every byte of it.
const golden = "1.00000000000000a1.00000002.00000000000000f3.00000006.0000000100000010.0000000100000008.r.00000007.cbf29ce484222325"

func goldenStamp() position.Stamp {
	return position.Stamp{
		History: 0xa1, Timeline: 2, Fingerprint: 0xf3, Partitions: 6,
		Position: position.Position{Commit: 0x100000010, LSN: 0x100000008, Kind: position.Row, Index: 7},
		IDHash:   position.HashID(nil),
	}
}

func TestStampGolden(t *testing.T) {
	t.Parallel()
	if got := goldenStamp().String(); got != golden {
		t.Errorf("String() =\n%s, want\n%s", got, golden)
	}
	got, err := position.Parse([]byte(golden))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	if got != goldenStamp() {
		t.Errorf("Parse = %+v, want %+v", got, goldenStamp())
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"empty":           "",
		"version only":    "1",
		"short":           golden[:len(golden)-1],
		"long":            golden + "0",
		"upper case":      strings.Replace(golden, "a1", "A1", 1),
		"not hex":         strings.Replace(golden, "f3", "g3", 1),
		"dot moved":       strings.Replace(golden, ".r.", "r..", 1),
		"unknown kind":    strings.Replace(golden, ".r.", ".x.", 1),
		"sign":            strings.Replace(golden, "00000007", "+0000007", 1),
		"space":           strings.Replace(golden, "00000007", " 0000007", 1),
		"no version dot":  "1" + golden,
		"version missing": golden[1:] + "0",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := position.Parse([]byte(text))
			if err == nil {
				t.Fatalf("Parse accepted %q", text)
			}
			if got != (position.Stamp{}) {
				t.Errorf("Parse = %+v beside an error, want the zero stamp", got)
			}
			if errors.Is(err, position.ErrVersion) {
				t.Errorf("Parse = %v, want an error about the form", err)
			}
		})
	}
}

func TestParseUnknownVersion(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"2.whatever comes then", "2" + golden[1:]} {
		if _, err := position.Parse([]byte(text)); !errors.Is(err, position.ErrVersion) {
			t.Errorf("Parse(%q) = %v, want ErrVersion", text, err)
		}
	}
}

func TestStampRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := drawStamp(t, "stamp")
		text := want.AppendText([]byte("x"))
		got, err := position.Parse(text[1:])
		if err != nil {
			t.Fatalf("Parse(%q): %v", text[1:], err)
		}
		if got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

// TestOrderOfText is the promise to consumers: with equal history and timeline the
// part from the commit to the index sorts bytewise like the positions.
func TestOrderOfText(t *testing.T) {
	t.Parallel()
	part := func(s position.Stamp) []byte {
		fields := bytes.Split(s.AppendText(nil), []byte("."))
		return bytes.Join(fields[5:9], []byte("."))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawStamp(t, "a"), drawStamp(t, "b")
		if rapid.Bool().Draw(t, "same commit") {
			b.Commit = a.Commit
		}
		if rapid.Bool().Draw(t, "same lsn") {
			b.LSN = a.LSN
		}
		want := a.Compare(b.Position)
		if got := bytes.Compare(part(a), part(b)); got != want {
			t.Fatalf("bytes compare %d, positions %d: %s, %s", got, want, a, b)
		}
		if got := b.Compare(a.Position); got != -want {
			t.Fatalf("Compare is not antisymmetric: %s, %s", a, b)
		}
	})
}

func TestCompare(t *testing.T) {
	t.Parallel()
	ordered := []position.Position{
		{},
		{Commit: 10, LSN: 9, Kind: position.Row},
		{Commit: 20, LSN: 5, Kind: position.Message}, // An earlier LSN of a later transaction.
		{Commit: 20, LSN: 5, Kind: position.Message, Index: 1},
		{Commit: 20, LSN: 5, Kind: position.Row}, // A message's LSN may equal the next row's.
		{Commit: 20, LSN: 5, Kind: position.Row, Index: 1},
		{Commit: 20, LSN: 6, Kind: position.Message},
	}
	shuffled := slices.Clone(ordered)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, position.Position.Compare)
	if !slices.Equal(shuffled, ordered) {
		t.Errorf("sorted = %v, want %v", shuffled, ordered)
	}
	if !ordered[0].IsZero() || ordered[1].IsZero() {
		t.Error("IsZero must hold for the zero position only")
	}
}

func TestPositionString(t *testing.T) {
	t.Parallel()
	p := position.Position{Commit: 0x100000010, LSN: 0x20, Kind: position.Message, Index: 3}
	if got, want := p.String(), "1/10/0/20/m3"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func TestAppendTextDoesNotAllocate(t *testing.T) {
	s, buf := goldenStamp(), make([]byte, 0, len(golden))
	if n := testing.AllocsPerRun(100, func() { buf = s.AppendText(buf[:0]) }); n != 0 {
		t.Errorf("AppendText allocates %v times", n)
	}
}

// TestHashID compares with the published test vectors of FNV-1a.
func TestHashID(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]uint64{
		"":       0xcbf29ce484222325,
		"a":      0xaf63dc4c8601ec8c,
		"foobar": 0x85944171f73967e8,
	} {
		if got := position.HashID([]byte(in)); got != want {
			t.Errorf("HashID(%q) = %x, want %x", in, got, want)
		}
		if got := position.HashHistory(in); got != want {
			t.Errorf("HashHistory(%q) = %x, want %x", in, got, want)
		}
	}
}

func routing() position.Routing {
	return position.Routing{
		Slot: "s", Database: "d", Publications: []string{"p", "q"}, Messages: true, MessagePrefix: "m",
		Tables: []string{"a.b", "c.d"}, Columns: map[string]string{"id": "id", "type": "kind"},
		Filters: []string{"f"}, Topic: "t.{type}", Key: "{id}", Partitioner: "murmur2",
	}
}

// TestFingerprintGolden guards the encoding: were it to change by accident, every
// upgrade would publish all unconfirmed rows again.
func TestFingerprintGolden(t *testing.T) {
	t.Parallel()
	const want = 0xa287291fd62c0515
	if got := routing().Fingerprint(); got != want {
		t.Errorf("Fingerprint() = %#x, want %#x", got, uint64(want))
	}
}

func TestFingerprintIgnoresOrder(t *testing.T) {
	t.Parallel()
	r := routing()
	slices.Reverse(r.Publications)
	slices.Reverse(r.Tables)
	if r.Fingerprint() != routing().Fingerprint() {
		t.Error("the order of publications or tables changed the fingerprint")
	}
	if r.Publications[0] != "q" {
		t.Error("Fingerprint reordered its argument")
	}
}

// TestFingerprintSeesEveryField changes one field after the other by reflection,
// so that a new field cannot be forgotten.
func TestFingerprintSeesEveryField(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{routing().Fingerprint(): "unchanged"}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[position.Routing]()) {
		r := routing()
		v := reflect.ValueOf(&r).Elem().FieldByIndex(f.Index)
		switch x := v.Interface().(type) {
		case string:
			v.SetString(x + "!")
		case bool:
			v.SetBool(!x)
		case []string:
			v.Set(reflect.ValueOf(append(slices.Clone(x), "!")))
		case map[string]string:
			v.Set(reflect.ValueOf(map[string]string{"id": "id", "type": "other"}))
		default:
			t.Fatalf("field %s has a type that this test cannot change", f.Name)
		}
		if other, dup := seen[r.Fingerprint()]; dup {
			t.Errorf("changing %s gives the fingerprint of %q", f.Name, other)
		}
		seen[r.Fingerprint()] = f.Name
	}
}

func TestFingerprintIsUnambiguous(t *testing.T) {
	t.Parallel()
	pairs := [][2]position.Routing{
		{{Slot: "ab", Database: "c"}, {Slot: "a", Database: "bc"}},
		{{Publications: []string{"a", "b"}}, {Publications: []string{"ab"}}},
		{{Publications: []string{"a,b"}}, {Publications: []string{"a", "b"}}},
		{{Publications: []string{"a"}}, {Tables: []string{"a"}}},
		{{Topic: "x"}, {Key: "x"}},
		{{Columns: map[string]string{"a": "b"}}, {Columns: map[string]string{"b": "a"}}},
	}
	for _, p := range pairs {
		if p[0].Fingerprint() == p[1].Fingerprint() {
			t.Errorf("%+v and %+v have one fingerprint", p[0], p[1])
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(golden))
	f.Add([]byte("2.x"))
	f.Add([]byte(strings.Replace(golden, ".r.", ".m.", 1)))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := position.Parse(text)
		if err != nil {
			return
		}
		if got := s.AppendText(nil); !bytes.Equal(got, text) {
			t.Errorf("accepted %q but writes %q", text, got)
		}
	})
}

func drawStamp(t *rapid.T, name string) position.Stamp {
	return position.Stamp{
		History:     rapid.Uint64().Draw(t, name+".history"),
		Timeline:    rapid.Uint32().Draw(t, name+".timeline"),
		Fingerprint: rapid.Uint64().Draw(t, name+".fingerprint"),
		Partitions:  rapid.Uint32().Draw(t, name+".partitions"),
		Position: position.Position{
			Commit: pglogrepl.LSN(rapid.Uint64().Draw(t, name+".commit")),
			LSN:    pglogrepl.LSN(rapid.Uint64().Draw(t, name+".lsn")),
			Kind:   rapid.SampledFrom([]position.Kind{position.Message, position.Row}).Draw(t, name+".kind"),
			Index:  rapid.Uint32().Draw(t, name+".index"),
		},
		IDHash: rapid.Uint64().Draw(t, name+".idhash"),
	}
}
