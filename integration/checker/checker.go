// Package checker writes events into an outbox table and judges what arrives on the topics. It shares no code with the
// relay, so that a misunderstanding in the relay cannot hide in the judge.
//
// Every event carries a number that its transaction took from a counter of its key, under the lock of the counter's
// row. So for each key the events that are committed are numbered 1, 2, 3, … in commit order, and the counters say how
// many there are. What follows from the relay's promises:
//
//   - each number up to the counter is on the key's topic (nothing is missing),
//   - the first copies of a key read 1, 2, 3, … (order), in one partition,
//   - nothing else is there: no row of a transaction or savepoint that was rolled back, no changed content,
//   - after each commit the writer notes the server's WAL position; at any moment a row that was noted at or before the
//     slot's confirmed position is on its topic (nothing is confirmed too early).
//
// A row that no broker takes, which Config.Poison writes, is where it belongs when it is among the dead letters: there,
// intact, before a later row of its key is on the topic. It may be in both places only if it was replayed, or if the
// letter says that it may have been published. A row that was replayed is on a topic once more.
//
// Second copies are counted, and their causes are told apart by the record's position header and by its producer, which
// the broker notes. Config.Repeats says which of them are faults.
package checker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config says what to write and where to look.
type Config struct {
	// URL leads to the database of the outbox table.
	URL string
	// Table is the outbox table as written in SQL. Default public.outbox. It has the columns id, aggregatetype,
	// aggregateid, type and payload.
	Table string
	// Slot is the relay's replication slot.
	Slot string
	// Brokers are addresses of the Kafka cluster.
	Brokers []string
	// Types are the aggregate types; each key belongs to one. Default "order".
	Types []string
	// TopicPrefix and an aggregate type together are the name of a topic.
	TopicPrefix string

	// Keys is the number of keys. Default 50.
	Keys int
	// MaxRows is the most rows of a transaction; it has at least one. Default 10.
	MaxRows int
	// Rollbacks is the share of transactions that are rolled back, and of savepoints within the others. Default 0.
	Rollbacks float64
	// Writers is the number of connections that write. Default 2.
	Writers int
	// Pause is how long each writer waits between transactions. Default 0.
	Pause time.Duration
	// Transactions ends Write after so many transactions of each writer. Default 0: it writes until its context ends.
	Transactions int
	// Rate is the most rows per second that all writers write together. Default 0: no limit.
	Rate int
	// Padding is the number of bytes that make each payload longer. Default 0.
	Padding int
	// Poison makes one row in so many one that cannot be published. Default 0: none.
	Poison int
	// PoisonBytes is the padding of one in five of those, which is to be more than a broker takes. The others are for a
	// topic of no valid name. Default 0: all are.
	PoisonBytes int
	// Seed makes the choice of keys, sizes and rollbacks repeatable.
	Seed uint64

	// Repeats says which repeats are faults. Default: none.
	Repeats Repeats
	// Fenced says that a relay that has been replaced can write to no partition where its successor has.
	Fenced bool
}

// Checker writes, samples and judges. Write, Watch and Read may run at the same time, each once.
type Checker struct {
	cfg    Config
	client *kgo.Client
	poison atomic.Int64 // one row in so many

	mu      sync.Mutex // guards what follows
	notes   map[string][]note
	samples []sample
	marks   []sample
	seen    ledger
	next    map[string]map[int32]int64 // offset after the last that Read has read, by topic and partition
}

// note says that after the commit of a key's event the server's WAL ended at that position.
type note struct {
	number int64
	wal    uint64
}

// New opens nothing yet. The caller closes the Checker.
func New(cfg Config) (*Checker, error) {
	if cfg.Table == "" {
		cfg.Table = "public.outbox"
	}
	if len(cfg.Types) == 0 {
		cfg.Types = []string{"order"}
	}
	setDefault(&cfg.Keys, 50)
	setDefault(&cfg.MaxRows, 10)
	setDefault(&cfg.Writers, 2)
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.MetadataMinAge(100*time.Millisecond),
		kgo.KeepControlRecords()) // Read would wait for one that is the last of its partition.
	if err != nil {
		return nil, fmt.Errorf("open Kafka client: %w", err)
	}
	c := &Checker{
		cfg: cfg, client: client, notes: map[string][]note{}, seen: newLedger(cfg.Fenced), next: map[string]map[int32]int64{},
	}
	c.Poison(cfg.Poison)
	return c, nil
}

// Poison changes Config.Poison for the rows to come.
func (c *Checker) Poison(oneIn int) { c.poison.Store(int64(oneIn)) }

func setDefault(value *int, preset int) {
	if *value == 0 {
		*value = preset
	}
}

// Close closes the Kafka client.
func (c *Checker) Close() { c.client.Close() }

// Topics returns the topics that the events go to.
func (c *Checker) Topics() []string {
	var topics []string
	for _, name := range c.cfg.Types {
		topics = append(topics, c.cfg.TopicPrefix+name)
	}
	return topics
}

// key returns the aggregate id and the aggregate type of a key.
func (c *Checker) key(i int) (id, kind string) {
	return "key-" + strconv.Itoa(i), c.cfg.Types[i%len(c.cfg.Types)]
}

// Setup creates the table of counters in the schema public. The outbox table must be there.
func (c *Checker) Setup(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.cfg.URL)
	if err != nil {
		return fmt.Errorf("set up checker: %w", err)
	}
	defer conn.Close(ctx)
	ids := make([]string, c.cfg.Keys)
	for i := range ids {
		ids[i], _ = c.key(i)
	}
	_, err = conn.Exec(ctx, `CREATE TABLE public.checker_counter (key text PRIMARY KEY, number bigint NOT NULL)`)
	if err == nil {
		_, err = conn.Exec(ctx, `INSERT INTO public.checker_counter SELECT unnest($1::text[]), 0`, ids)
	}
	if err != nil {
		return fmt.Errorf("set up checker: %w", err)
	}
	return nil
}

// counters returns how many events of each key are committed.
func (c *Checker) counters(ctx context.Context) (map[string]int64, error) {
	conn, err := pgx.Connect(ctx, c.cfg.URL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT key, number FROM public.checker_counter`)
	if err != nil {
		return nil, err
	}
	counters := map[string]int64{}
	var key string
	var number int64
	_, err = pgx.ForEachRow(rows, []any{&key, &number}, func() error {
		counters[key] = number
		return nil
	})
	return counters, err
}

// Report reads what is new on the topics and judges all that it has read. Call it when Write has returned: events that
// are committed and not yet on their topic are missing.
func (c *Checker) Report(ctx context.Context) (Report, error) {
	counters, err := c.counters(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("read counters: %w", err)
	}
	if err := c.Read(ctx); err != nil {
		return Report{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	report := judge(counters, &c.seen, c.notes, c.samples)
	judgeLetters(&report, counters, &c.seen)
	judgeRepeats(&report, &c.seen, c.marks, c.cfg.Repeats)
	return report, nil
}

// Wait waits until nothing is missing and returns the report, or the last one when ctx ends.
func (c *Checker) Wait(ctx context.Context) (Report, error) {
	var missing int64
	for {
		counters, err := c.counters(ctx)
		if err == nil {
			err = c.Read(ctx)
		}
		if err == nil {
			if missing = c.missing(counters); missing == 0 {
				return c.Report(ctx)
			}
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			err = errors.Join(fmt.Errorf("wait for delivery, %d events missing: %w", missing, context.Cause(ctx)), err)
			farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			report, last := c.Report(farewell)
			return report, errors.Join(err, last)
		}
	}
}

// missing returns how many events are on no topic and in no dead letter, and how many replays are not on theirs.
func (c *Checker) missing(counters map[string]int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing int64
	for key, count := range counters {
		if h := c.seen.keys[key]; h != nil {
			count -= h.highest // Fewer may be missing: there are later ones, perhaps. None is when this is 0.
		}
		missing += max(0, count)
	}
	return missing + int64(len(c.seen.lost())+len(c.seen.unsent()))
}

// Repeated reads what is new on the topics and returns how many second and further copies there are.
func (c *Checker) Repeated(ctx context.Context) (int, error) {
	if err := c.Read(ctx); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen.repeats), nil
}

// Mark is what a relay finds that starts now.
type Mark struct {
	// Confirmed is the slot's confirmed position.
	Confirmed uint64
	// Records is the number of records on the topics, Repeats how many of them are second and further copies.
	Records, Repeats int
	// Past is the number of rows that are on the topics and not confirmed.
	Past int
	// Letters is the number of dead letters, Replayed how often they have been replayed, and published for that.
	Letters, Replayed int
	// Half is the number of transactions of which some rows are on the topics and some are not.
	Half int
}

// Mark notes what a relay finds that starts now. Call it when no relay runs, and every walsender of the slot is gone:
// the judge takes every record that is on a topic then as one that the next relay can see. It is a sample, too.
func (c *Checker) Mark(ctx context.Context) (Mark, error) {
	found, err := c.connectAndSample(ctx)
	if err != nil {
		return Mark{}, err
	}
	if err := c.Read(ctx); err != nil {
		return Mark{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marks = append(c.marks, found)
	return Mark{
		Confirmed: found.confirmed, Records: c.seen.records, Repeats: len(c.seen.repeats),
		Past: c.seen.past(found.confirmed), Half: len(c.seen.partial), Letters: len(c.seen.letters), Replayed: c.seen.replays(),
	}, nil
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
