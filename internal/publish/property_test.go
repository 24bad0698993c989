package publish_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// step is one thing that the driver does.
type step struct {
	action string
	key    int
	wait   time.Duration
}

// scenario is everything that a run does; the rest follows from it.
type scenario struct {
	steps      []step
	faults     [8][]fault
	partitions int
	budget     int
	maxMessage int
}

func drawScenario(t *rapid.T, faults []fault, actions []string) scenario {
	s := scenario{
		partitions: rapid.IntRange(1, 3).Draw(t, "partitions"),
		budget:     rapid.SampledFrom([]int{64 << 10, 1 << 20}).Draw(t, "budget"),
		maxMessage: rapid.SampledFrom([]int{1024, 4096, 1 << 20}).Draw(t, "max message"),
	}
	for i := range s.faults {
		s.faults[i] = rapid.SliceOfN(rapid.SampledFrom(faults), 0, 8).Draw(t, fmt.Sprintf("faults %d", i))
	}
	s.steps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			action: rapid.SampledFrom(actions).Draw(t, "action"),
			key:    rapid.IntRange(0, 5).Draw(t, "key"),
			wait:   time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond,
		}
	}), 1, 120).Draw(t, "steps")
	return s
}

// driver plays the relay: it has a stream of rows in transactions of three, publishes
// them, confirms whole transactions that are settled and, in a new session, begins
// again behind them.
type driver struct {
	t         *testing.T
	m         *modelBroker
	p         *publish.Publisher
	rows      []streamRow
	confirmed int // rows confirmed
	next      int // the next row to hand over
	base      int // rows before the session's first
	timeline  uint32
	history   uint64
	doubted   error // why the history was renewed
}

// streamRow is a row of the stream. A row of another history takes the place of one
// that was never confirmed: same position, other row.
type streamRow struct{ key, history int }

const perTransaction = 3

func (d *driver) value(i int) string { return fmt.Sprint(i, ".", d.rows[i].history) }

func commitOf(row int) pglogrepl.LSN { return pglogrepl.LSN(1000 + row/perTransaction) }

// walEnd is where the server's log ends.
func (d *driver) walEnd() pglogrepl.LSN {
	if len(d.rows) == 0 {
		return 1000
	}
	return commitOf(len(d.rows)-1) + 1
}

// renewed begins again under another history if the publisher asks for it.
func (d *driver) renewed() bool {
	select {
	case err := <-d.p.Reset():
		if _, ok := errors.AsType[*publish.HistoryError](err); !ok {
			d.t.Errorf("Reset = %v", err)
		}
		d.confirm()
		d.doubted = err
		d.history++
		d.begin(d.walEnd())
		return true
	default:
		return false
	}
}

func (d *driver) begin(walEnd pglogrepl.LSN) {
	d.p.End()
	d.base, d.next = d.confirmed, d.confirmed
	d.p.Begin(publish.Session{
		SystemID: "s", Timeline: d.timeline, History: d.history, Fingerprint: 2,
		Start: commitOf(d.confirmed), WALEnd: walEnd, Alive: func() bool { return true },
	})
}

// otherHistory replaces the rows that are not confirmed.
func (d *driver) otherHistory() {
	for i := d.confirmed; i < len(d.rows); i++ {
		d.rows[i] = streamRow{key: (d.rows[i].key + 1) % 6, history: d.rows[i].history + 1}
	}
}

// catchUp hands over every row of the stream that the session has not handed over.
func (d *driver) catchUp() error {
	for d.next < len(d.rows) {
		i := d.next
		err := d.p.Publish(d.t.Context(), &publish.Record{
			Topic: "t", Key: strconv.AppendInt(nil, int64(d.rows[i].key), 10), Value: []byte(d.value(i)),
			ID: []byte("id-" + d.value(i)), Time: time.Now(),
			Position: position.Position{Commit: commitOf(i), LSN: 7, Kind: position.Row, Index: uint32(i)},
			Seq:      uint64(i - d.base + 1),
		})
		if err != nil {
			return fmt.Errorf("publish row %d: %w", i, err)
		}
		if i%perTransaction == perTransaction-1 {
			d.p.Passed(commitOf(i) + 1)
		}
		d.next++
		d.confirm()
	}
	return nil
}

// confirm moves the confirmed row behind what is settled, and checks that it is on
// the topic.
func (d *driver) confirm() {
	settled := d.next
	if oldest, any := d.p.Oldest(); any {
		settled = d.base + int(oldest) - 1
	}
	d.confirmed = max(d.confirmed, settled-settled%perTransaction)
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	have := map[string]bool{}
	for _, p := range d.m.topics["t"] {
		for _, r := range p.log {
			have[r.value] = true
		}
	}
	for i := range settled {
		if !have[d.value(i)] {
			d.m.complain("row %s is settled but not on the topic", d.value(i))
		}
	}
}

func (d *driver) step(s step) error {
	switch s.action {
	case "put":
		d.rows = append(d.rows, streamRow{key: s.key})
	case "wait":
		time.Sleep(s.wait)
	case "reconnect":
		d.confirm()
		d.begin(d.walEnd())
	case "promote": // Another timeline.
		d.confirm()
		d.timeline++
		d.otherHistory()
		d.begin(d.walEnd())
	case "rewind": // The same timeline, and the log reaches as far as before.
		d.confirm()
		d.otherHistory()
		d.begin(d.walEnd())
	case "restore": // The same timeline, but the server's WAL ends where it is confirmed.
		d.confirm()
		d.otherHistory()
		d.begin(commitOf(d.confirmed) - 1)
		d.renewed()
	case "grow":
		d.m.grow("t", len(d.m.topics["t"])+1)
	}
	d.renewed()
	return d.catchUp()
}

func (d *driver) run(s scenario) error {
	d.begin(1000)
	for _, st := range s.steps {
		if err := d.step(st); err != nil {
			return err
		}
	}
	for len(d.rows)%perTransaction != 0 {
		if err := d.step(step{action: "put"}); err != nil {
			return err
		}
	}
	if err := d.drain(); err != nil {
		return err
	}
	d.confirm()
	if d.confirmed != len(d.rows) {
		return fmt.Errorf("confirmed %d of %d rows", d.confirmed, len(d.rows))
	}
	time.Sleep(10 * time.Minute) // A batch of a past session may still be under way,
	if d.renewed() {             // and its rows replaced by others.
		if err := d.drain(); err != nil {
			return err
		}
	}
	if s := d.p.Snapshot(); s.Rows != 0 || s.Bytes != 0 || len(s.Lanes) != 0 {
		return fmt.Errorf("drained, but %d rows, %d bytes, lanes %+v are left", s.Rows, s.Bytes, s.Lanes)
	}
	return nil
}

// drain waits until every row is settled, whatever is found out about the history
// meanwhile.
func (d *driver) drain() error {
	for range 600 {
		ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
		err := d.p.Drained(ctx)
		cancel()
		if err == nil {
			return nil
		}
		if d.renewed() {
			if err := d.catchUp(); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("not drained: %v", d.p.Snapshot().Problems())
}

// check reads the topic: every row is there, first copies are in order for each key.
func (d *driver) check(repeats bool) error {
	d.m.verify()
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	for _, p := range d.m.problems {
		return errors.New(p)
	}
	first := map[string]int{}
	copies := 0
	for _, p := range d.m.topics["t"] {
		for _, r := range p.log {
			copies++
			if at, ok := first[r.value]; !ok || r.order < at {
				first[r.value] = r.order
			}
		}
	}
	last := map[int]int{}
	for i, row := range d.rows {
		at, ok := first[d.value(i)]
		if !ok {
			return fmt.Errorf("row %s is missing", d.value(i))
		}
		if at < last[row.key] {
			return fmt.Errorf("row %s of key %d is out of order", d.value(i), row.key)
		}
		last[row.key] = at
	}
	if !repeats && copies != len(d.rows) {
		return fmt.Errorf("%d copies of %d rows, history doubted: %w", copies, len(d.rows), d.doubted)
	}
	return nil
}

func play(t *testing.T, s scenario, repeats bool) (err error) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel("t", s.partitions)
		for i, p := range m.topics["t"] {
			p.faults = s.faults[i]
		}
		p, perr := publish.New(publish.Config{InFlightBytes: s.budget, MaxMessageBytes: s.maxMessage}, m, slog.New(slog.DiscardHandler), nil)
		if perr != nil {
			err = perr
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Run(ctx) }()
		d := &driver{t: t, m: m, p: p}
		if err = d.run(s); err == nil {
			err = d.check(repeats)
		}
		cancel()
		<-done
	})
	return err
}

func allFaults() []fault {
	var out []fault
	for f := range numFaults {
		out = append(out, f)
	}
	return out
}

// TestOrderAndNoLoss: whatever happens to requests and sessions, every row reaches
// the topic, exactly once, first copies in order, and no sequence number is reused.
func TestOrderAndNoLoss(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScenario(rt, allFaults(), []string{"put", "put", "put", "put", "wait", "reconnect"})
		if err := play(t, s, false); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestOrderWithOtherHistories adds promoted and restored servers, whose rows take the
// place of others, and growing partition counts. All may repeat rows.
func TestOrderWithOtherHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScenario(rt, allFaults(), []string{"put", "put", "put", "put", "wait", "reconnect", "promote", "restore", "rewind", "grow"})
		if err := play(t, s, true); err != nil {
			rt.Fatal(err)
		}
	})
}
