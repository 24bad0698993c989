package publish_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/segmentio/kafka-go"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/position"
	"github.com/cdc-relay/cdc-relay/internal/publish"
)

// server is a database: its log and its slot. A snapshot of it is a copy.
type server struct {
	log       [][]logRow // by transaction
	confirmed int        // transactions
	timeline  uint32
	history   uint64
}

type logRow struct{ key, id int }

func (s server) commit(i int) pglogrepl.LSN { return pglogrepl.LSN(1000 + 10*i) }

// end is where transaction i ends, and the position that confirms it.
func (s server) end(i int) pglogrepl.LSN { return s.commit(i) + 5 }

// relay is one process and its session.
type relay struct {
	p    *publish.Publisher
	kill func()
	// holder is who it is to the store of dead letters, in its last session.
	holder atomic.Pointer[int]
	fed    int   // transactions of the server's log that were handed over
	last   []int // for each of them the session's last sequence; from start on
	base   int   // the first of them
}

// world is many lives of the relay over one broker and one server, or what was made
// of it.
type world struct {
	t       *testing.T
	s       livesScenario
	m       *modelBroker
	server  server
	saved   []server // snapshots
	now     *relay
	zombie  *relay
	ids     int
	gone    []*modelPartition // of topics made again
	alarms  int
	history uint64 // the last one given
	store   store
}

type livesScenario struct {
	steps      []step
	faults     [8][]fault
	reads      [8][]bool
	partitions int
	maxMessage int
	// refused has some readings be refused.
	refused bool
	keeps   keeps
}

func (w *world) launch() {
	r := new(relay)
	p, err := publish.New(w.config(r), w.m, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	r.p, r.kill = p, func() { cancel(); <-done }
	w.now = r
	w.begin()
}

// begin begins a session at what is confirmed.
func (w *world) begin() {
	s := &w.server
	w.now.p.End()
	w.now.fed, w.now.base, w.now.last = s.confirmed, s.confirmed, nil
	w.store.begin(w.now)
	w.now.p.Begin(publish.Session{
		SystemID: "s", Timeline: s.timeline, History: s.history, Fingerprint: 2,
		Start: s.end(s.confirmed - 1), WALEnd: s.end(len(s.log) - 1),
		Alive: func() bool { return true },
	})
}

// feed hands over what the server has and the session has not had, and does what the
// relay does when the session has to end.
func (w *world) feed() error {
	s, r := &w.server, w.now
	for ; r.fed < len(s.log); r.fed++ {
		seq := 0
		if len(r.last) > 0 {
			seq = r.last[len(r.last)-1]
		}
		for i, row := range s.log[r.fed] {
			seq++
			pos := position.Position{Commit: s.commit(r.fed), LSN: s.commit(r.fed) - 3, Kind: position.Row, Index: uint32(i)}
			err := r.p.Publish(w.t.Context(), &publish.Record{
				Topic: "t", Key: fmt.Append(nil, row.key), Value: fmt.Append(nil, row.id), ID: fmt.Append(nil, "id-", row.id),
				Position: pos, Time: time.Now(), Seq: uint64(seq), Dead: w.store.known[pos],
			})
			if err != nil {
				return fmt.Errorf("publish: %w", err)
			}
		}
		r.last = append(r.last, seq)
		r.p.Passed(s.end(r.fed))
	}
	select {
	case err := <-r.p.Reset():
		var history *publish.HistoryError
		var timeline *publish.TimelineError
		if !errors.As(err, &history) && !errors.As(err, &timeline) {
			return fmt.Errorf("reset: %w", err)
		}
		w.alarms++
		w.history++
		s.history = w.history
		w.begin()
		return w.feed()
	default:
		return nil
	}
}

// confirm moves the slot behind what is settled, and checks that this is on the topic.
func (w *world) confirm() error {
	s, r := &w.server, w.now
	oldest, any := r.p.Oldest()
	for n := s.confirmed - r.base; n < len(r.last) && (!any || uint64(r.last[n]) < oldest); n++ {
		for _, row := range s.log[r.base+n] {
			if w.copies(row.id) == 0 && !w.store.has(row.id) {
				return fmt.Errorf("row %d is confirmed but not on the topic, nor a dead letter", row.id)
			}
		}
		s.confirmed++
	}
	return nil
}

// each calls f for every record that was ever written.
func (w *world) each(f func(r modelRecord)) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, p := range slices.Concat(w.gone, w.m.topics["t"]) {
		for _, r := range p.log {
			f(r)
		}
	}
}

func (w *world) copies(id int) (n int) {
	w.each(func(r modelRecord) {
		if r.value == fmt.Sprint(id) {
			n++
		}
	})
	return n
}

func (w *world) endZombie() {
	if w.zombie != nil {
		w.zombie.kill()
		w.zombie = nil
	}
}

func (w *world) partition(i int) *modelPartition {
	return w.m.topics["t"][i%len(w.m.topics["t"])]
}

func (w *world) step(s step) error {
	switch s.action {
	case "put":
		for i := range 1 + s.key {
			w.put(s.key + i)
		}
	case "wait":
		time.Sleep(s.wait)
	case "confirm": // The server is told now and then.
		if err := w.confirm(); err != nil {
			return err
		}
	case "reconnect":
		w.begin()
	case "kill":
		w.now.kill()
		w.launch()
	case "kill behind": // The server goes on before the next process starts.
		w.now.kill()
		w.put(s.key)
		w.launch()
	case "zombie": // The process is stopped, wakes up, and knows nothing of the next one.
		w.endZombie()
		w.zombie = w.now
		w.launch()
	case "end zombie":
		w.endZombie()
	default:
		w.change(s)
	}
	return w.feed()
}

// change does something to the topic or the server.
func (w *world) change(s step) {
	w.m.mu.Lock()
	p := w.partition(s.key)
	switch s.action {
	case "others":
		for range s.key + 1 {
			w.m.write(p, modelRecord{value: "other"})
		}
	case "copy":
		from := w.partition(s.key + 1)
		w.m.write(p, slices.Clone(from.log[max(0, len(from.log)-s.key):])...)
	case "retention":
		p.first = max(p.first, p.highWatermark()-int64(s.key))
	case "compaction":
		for i := range p.log {
			p.log[i].gone = p.log[i].gone || i%3 == s.key%3
		}
	case "forget":
		p.producers = map[int64]*modelProducer{}
	}
	w.m.mu.Unlock()
	switch s.action {
	case "grow":
		w.m.grow("t", len(w.m.topics["t"])+1)
	case "snapshot":
		w.saved = append(w.saved, w.server)
	case "restore", "promote": // As it was, or a standby that was behind.
		if len(w.saved) == 0 {
			return
		}
		w.now.kill()
		timeline := w.server.timeline
		w.server = w.saved[s.key%len(w.saved)]
		w.server.log = slices.Clip(w.server.log)
		if s.action == "promote" {
			w.server.timeline = timeline + 1
		}
		for range s.key { // Other rows at the same positions.
			w.put(s.key)
		}
		w.launch()
	case "recreate":
		w.now.kill()
		w.m.mu.Lock()
		for i, p := range w.m.topics["t"] {
			w.gone = append(w.gone, p)
			w.m.topics["t"][i] = newPartition()
		}
		w.m.mu.Unlock()
		w.launch()
	}
}

// put has the server commit a transaction of one to three rows.
func (w *world) put(key int) {
	var rows []logRow
	for i := range 1 + key%3 {
		w.ids++
		rows = append(rows, logRow{key: (key + i) % 6, id: w.ids})
	}
	w.server.log = append(w.server.log, rows)
}

func (w *world) run() error {
	w.put(0)
	w.launch()
	for _, s := range w.s.steps {
		if err := w.step(s); err != nil {
			return fmt.Errorf("%s: %w", s.action, err)
		}
	}
	w.endZombie()
	for i := 0; w.server.confirmed < len(w.server.log); i++ {
		time.Sleep(time.Second)
		if err := w.feed(); err != nil {
			return err
		}
		if err := w.confirm(); err != nil {
			return err
		}
		if i == 3600 {
			return fmt.Errorf("confirmed %d of %d transactions after an hour: %v", w.server.confirmed, len(w.server.log), w.now.p.Snapshot().Problems())
		}
	}
	return nil
}

// check compares the topic with the server's log: every row is there, first copies
// are in order for each key, and where that is promised there are no others.
func (w *world) check(repeats, alarms bool) error {
	w.m.verify()
	w.m.mu.Lock()
	problems := w.m.problems
	w.m.mu.Unlock()
	if len(problems) > 0 {
		return errors.New(problems[0])
	}
	if !alarms && w.alarms > 0 {
		return fmt.Errorf("%d alarms", w.alarms)
	}
	first, copies := map[string]int{}, map[string]int{}
	w.each(func(r modelRecord) {
		if at, ok := first[r.value]; !ok || r.order < at {
			first[r.value] = r.order
		}
		copies[r.value]++
	})
	last := map[int]int{}
	for _, transaction := range w.server.log {
		for _, row := range transaction {
			value := fmt.Sprint(row.id)
			if err := w.judge(row.id, copies[value], repeats); err != nil {
				return err
			}
			switch at, ok := first[value]; {
			case w.store.has(row.id):
			case !ok:
				return fmt.Errorf("row %d is missing", row.id)
			case at < last[row.key]:
				return fmt.Errorf("row %d of key %d is out of order", row.id, row.key)
			case !repeats && copies[value] > 1:
				return fmt.Errorf("row %d was published %d times", row.id, copies[value])
			default:
				last[row.key] = at
			}
		}
	}
	return nil
}

// live plays a scenario. The first history is the one that a slot is made with.
func live(t *testing.T, s livesScenario, repeats, alarms bool) (err error) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel("t", s.partitions)
		for i, p := range m.topics["t"] {
			p.faults = s.faults[i]
			for _, fails := range s.reads[i] {
				p.reads = append(p.reads, nil)
				if fails {
					p.reads = append(p.reads, kafka.OffsetNotAvailable, errNoAnswer)
				}
				if fails && s.refused {
					p.reads = append(p.reads, kafka.TopicAuthorizationFailed)
				}
			}
		}
		w := &world{t: t, s: s, m: m, server: server{timeline: 1, history: 1}, history: 1}
		if err = w.run(); err == nil {
			err = w.check(repeats, alarms)
		}
		w.endZombie()
		w.now.kill()
	})
	return err
}

func drawLives(t *rapid.T, faults []fault, actions []string) livesScenario {
	s := livesScenario{
		partitions: rapid.IntRange(1, 3).Draw(t, "partitions"),
		maxMessage: rapid.SampledFrom([]int{1024, 1 << 20}).Draw(t, "max message"),
	}
	for i := range s.faults {
		s.faults[i] = rapid.SliceOfN(rapid.SampledFrom(faults), 0, 8).Draw(t, fmt.Sprintf("faults %d", i))
		s.reads[i] = rapid.SliceOfN(rapid.Bool(), 0, 6).Draw(t, fmt.Sprintf("reads %d", i))
	}
	s.steps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			action: rapid.SampledFrom(actions).Draw(t, "action"),
			key:    rapid.IntRange(0, 5).Draw(t, "key"),
			wait:   time.Duration(rapid.SampledFrom([]int{1, 2, 3, 5, 10, 500, 3000}).Draw(t, "ms")) * time.Millisecond,
		}
	}), 20, 80).Draw(t, "steps")
	return s
}

// decidedSoon are the faults after which nothing lands later.
func decidedSoon() []fault {
	return []fault{
		none, none, none, noLeader, noBroker, notLeader, notEnough, answerLost, requestLost, timedOut,
		afterAppend, storageError, outOfOrder, duplicate, unknownID,
	}
}

var kills = []string{"put", "put", "wait", "wait", "wait", "wait", "confirm", "kill", "kill behind", "reconnect", "others"}

// TestLivesRepeatNothing: whatever requests meet, and whenever a process is killed,
// every row is published once if nothing lands after its partition was read.
func TestLivesRepeatNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if err := live(t, drawLives(rt, decidedSoon(), kills), false, false); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestLivesWithZombies adds batches that land late, processes that write on after the
// next one has started, and what shortens the log: it costs repeats, no row and no
// order, and raises no alarm.
func TestLivesWithZombies(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawLives(rt, append(decidedSoon(), requestLate, requestLate, producerGone),
			append([]string{"zombie", "zombie", "end zombie", "retention", "compaction", "forget", "grow"}, kills...))
		s.refused = rapid.Bool().Draw(rt, "refused")
		if err := live(t, s, true, false); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestLivesWithOtherHistories adds restored snapshots and promoted standbys, whose
// rows take the place of others, records copied to other partitions, and topics made
// again: no row of the server that is there in the end is missing.
func TestLivesWithOtherHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawLives(rt, append(decidedSoon(), requestLate, producerGone),
			append([]string{"snapshot", "restore", "promote", "copy", "recreate", "zombie", "end zombie", "retention"}, kills...))
		if err := live(t, s, true, true); err != nil {
			rt.Fatal(err)
		}
	})
}
