package checker

import "fmt"

// place is where the records of a key are.
type place struct {
	topic     string
	partition int32
}

// producer is who wrote a record, as the broker noted it. Each relay process has its own, or raises the epoch of one.
type producer struct {
	id    int64
	epoch int16
}

// origin is where a record comes from: its row's place in the write-ahead log, and its writer.
type origin struct {
	position position
	producer producer
}

// record is a record as read.
type record struct {
	place
	origin
	offset  int64
	key, id string
	replay  int // which replay of a dead letter it is, 0 for none
	value   []byte
}

// ledger is what was read, in the order of each partition.
type ledger struct {
	fenced     bool // a writer whose successor has written to a partition must not
	keys       map[string]*history
	writers    map[producer]map[place]int64 // the first offset that each wrote, by partition
	newest     map[place]producer           // who began to write last
	partial    map[string]int               // rows still to come of transactions of which some are there
	recent     []uint64                     // positions of the first copies since the last mark, and before if not confirmed
	repeats    []repeat
	letters    map[identity]*letter
	gone       []*letter // that were in the table, and are not any more
	records    int
	outOfOrder int
	foreign    int
	intruding  int
	faults     map[string][]string // by kind
}

func newLedger(fenced bool) ledger {
	return ledger{
		fenced: fenced, keys: map[string]*history{}, writers: map[producer]map[place]int64{}, newest: map[place]producer{}, partial: map[string]int{},
		letters: map[identity]*letter{},
	}
}

// history is what was read of one key.
type history struct {
	place
	first    map[int64]copied  // first copies by number
	dead     map[int64]*letter // dead letters by number
	replayed map[replay]copied // first copies that replays have brought
	highest  int64             // all numbers up to this one have been seen
}

// replay is one replay of an event.
type replay struct {
	number int64
	count  int // how often it had been replayed then, this time included
}

// of returns the history of a key.
func (l *ledger) of(key string) *history {
	h := l.keys[key]
	if h == nil {
		h = &history{first: map[int64]copied{}, dead: map[int64]*letter{}, replayed: map[replay]copied{}}
		l.keys[key] = h
	}
	return h
}

// has says whether an event is where it belongs.
func (h *history) has(number int64) bool {
	_, there := h.first[number]
	return there || h.dead[number] != nil
}

// advance moves highest.
func (h *history) advance() {
	for h.has(h.highest + 1) {
		h.highest++
	}
}

// copied is a first copy: where it is, of which message, and from where.
type copied struct {
	place
	origin
	offset int64
	id     string
}

// repeat is a second or further copy.
type repeat struct {
	place
	first  copied
	origin origin
	offset int64
	key    string
	number int64
}

// enter takes records of a partition in order of their offsets.
func (l *ledger) enter(r record) {
	l.records++
	l.wrote(r)
	e, intact := parseEvent(r.value)
	where := fmt.Sprintf("%s/%d@%d: key %s number %d", r.topic, r.partition, r.offset, e.Key, e.Number)
	switch {
	case !intact || r.key != e.Key || r.id != e.ID:
		l.fault(&l.foreign, "foreign", "%s: content is not as written", where)
		return
	case e.RolledBack:
		l.fault(&l.foreign, "foreign", "%s: rolled back", where)
		return
	}
	h := l.of(e.Key)
	if r.replay > 0 {
		l.replayed(h, e, r)
		return
	}
	if h.place == (place{}) {
		h.place = r.place
	}
	first, known := h.first[e.Number]
	switch {
	case h.place != r.place:
		l.fault(&l.foreign, "foreign", "%s: the key began in %s/%d", where, h.topic, h.partition)
	case known && first.id != e.ID:
		l.fault(&l.foreign, "foreign", "%s: message %s, but at offset %d it is %s", where, e.ID, first.offset, first.id)
	case known:
		l.repeated(first, e, r)
	default:
		dead := h.dead[e.Number]
		if dead == nil && e.Number != h.highest+1 {
			l.fault(&l.outOfOrder, "order", "%s: expected number %d", where, h.highest+1)
		}
		h.first[e.Number] = copied{place: r.place, origin: r.origin, offset: r.offset, id: e.ID}
		h.advance()
		if dead == nil {
			l.arrived(e, r.position.commit)
		}
	}
}

func (l *ledger) repeated(first copied, e event, r record) {
	l.repeats = append(l.repeats, repeat{
		place: r.place, first: first, origin: r.origin, offset: r.offset, key: e.Key, number: e.Number,
	})
}

// wrote notes who has written to a partition, and whether it is one whose successor has written there.
func (l *ledger) wrote(r record) {
	wrote := l.writers[r.producer]
	if wrote == nil {
		wrote = map[place]int64{}
		l.writers[r.producer] = wrote
	}
	_, known := wrote[r.place]
	if !known {
		wrote[r.place] = r.offset
	}
	newest, begun := l.newest[r.place]
	switch {
	case !begun, newest != r.producer && !known && (newest.id != r.producer.id || newest.epoch < r.producer.epoch):
		l.newest[r.place] = r.producer
	case newest != r.producer && l.fenced:
		l.fault(&l.intruding, "intruding", "%s/%d@%d: producer %d epoch %d, after producer %d epoch %d has written",
			r.topic, r.partition, r.offset, r.producer.id, r.producer.epoch, newest.id, newest.epoch)
	}
}

// arrived notes that another row of a transaction is there.
func (l *ledger) arrived(e event, commit uint64) {
	l.recent = append(l.recent, commit)
	left, begun := l.partial[e.Transaction]
	if !begun {
		left = e.Rows
	}
	if left > 1 {
		l.partial[e.Transaction] = left - 1
	} else {
		delete(l.partial, e.Transaction)
	}
}

// past returns how many rows are there that are not confirmed, and forgets the others.
func (l *ledger) past(confirmed uint64) int {
	kept := l.recent[:0]
	for _, commit := range l.recent {
		if commit >= confirmed {
			kept = append(kept, commit)
		}
	}
	l.recent = kept
	return len(kept)
}

// fault counts a fault, and describes the first few of its kind.
func (l *ledger) fault(count *int, kind, format string, args ...any) {
	*count++
	if l.faults == nil {
		l.faults = map[string][]string{}
	}
	if len(l.faults[kind]) < 5 {
		l.faults[kind] = append(l.faults[kind], fmt.Sprintf(format, args...))
	}
}
