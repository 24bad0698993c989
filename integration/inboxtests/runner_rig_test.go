package inboxtests

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// runnerPatience is generous: it decides nothing but how long a failure takes.
const runnerPatience = 40 * time.Second

// runnerRig is a database with a consumer, whose handler writes down the message and
// fails for the ids that the test names.
type runnerRig struct {
	*testenv.Env

	t    *testing.T
	pool *pgxpool.Pool
	cfg  inbox.Config
	seen *deliveries

	mu      sync.Mutex
	failing map[string]error
	calls   map[string]int // of the handler, by message
}

func newRunnerRig(t *testing.T, change ...func(*inbox.Config)) *runnerRig {
	t.Helper()
	r := &runnerRig{Env: testenv.New(t, testenv.NoKafka()), t: t, failing: map[string]error{}, calls: map[string]int{}, seen: &deliveries{}}
	r.must(migrateInbox(t.Context(), r.URL))
	r.Exec("CREATE TABLE effect (n bigserial PRIMARY KEY, message_id text NOT NULL, consumer text NOT NULL)")
	pool, err := pgxpool.New(t.Context(), r.URL)
	r.must(err)
	t.Cleanup(pool.Close)
	r.pool = pool
	r.cfg = inbox.Config{
		Consumer: "shipping", Pool: pool, Handler: r.handle, Observer: r.seen,
		Backoff:      inbox.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond},
		PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Breaker: inbox.Breaker{Off: true}, // a few letters that all fail are what these tests are about
	}
	for _, c := range change {
		c(&r.cfg)
	}
	return r
}

func migrateInbox(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = migrations.Up(ctx, conn, migrations.Options{Only: []string{"cdc_relay_inbox"}})
	return err
}

func (r *runnerRig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *runnerRig) handle(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
	r.mu.Lock()
	r.calls[m.ID]++
	err := r.failing[m.ID]
	r.mu.Unlock()
	if _, insert := tx.Exec(ctx, "INSERT INTO effect (message_id, consumer) VALUES ($1, $2)", m.ID, r.cfg.Consumer); insert != nil {
		return insert
	}
	return err
}

// fail has the handler fail for messages; a nil err lets it succeed.
func (r *runnerRig) fail(err error, ids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.failing[id] = err
	}
}

func (r *runnerRig) handled(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[id]
}

func (r *runnerRig) processor(change ...func(*inbox.Config)) *inbox.Processor {
	r.t.Helper()
	cfg := r.cfg
	for _, c := range change {
		c(&cfg)
	}
	p, err := inbox.New(cfg)
	r.must(err)
	return p
}

// run runs the runner of p until the test ends or stop is called.
func (r *runnerRig) run(p *inbox.Processor) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("Run = %v, want nil at the end", err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// keyed is a message of a key; the id says which.
func keyed(id, key string, headers ...string) *inbox.Message {
	m := &inbox.Message{
		ID: id, Topic: "orders", Partition: 3, Offset: 7, Value: []byte("value of " + id), Time: time.Unix(1_700_000_000, 0),
		Headers: []inbox.Header{{Name: "id", Value: []byte(id)}, {Name: "type", Value: []byte("OrderPlaced")}, {Name: "bytes", Value: []byte{0, 0xff}}},
	}
	if key != "" {
		m.Key = []byte(key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Headers = append(m.Headers, inbox.Header{Name: headers[i], Value: []byte(headers[i+1])})
	}
	return m
}

func versioned(id, key string, version int) *inbox.Message {
	return keyed(id, key, "aggregateversion", strconv.Itoa(version))
}

// deliver wants the outcome of one delivery.
func (r *runnerRig) deliver(p *inbox.Processor, m *inbox.Message, want inbox.Outcome) inbox.Result {
	r.t.Helper()
	got := p.Process(r.t.Context(), m)
	if got.Outcome != want {
		r.t.Fatalf("message %s is %v (%v), want %v", m.ID, got.Outcome, got.Err, want)
	}
	return got
}

// replay marks letters by message as due and returns how many were dead.
func (r *runnerRig) replay(ids ...string) int { return r.decide("cdc_inbox_replay", ids) }

// discard gives letters up by message and returns how many were dead.
func (r *runnerRig) discard(ids ...string) int { return r.decide("cdc_inbox_discard", ids) }

func (r *runnerRig) decide(function string, ids []string) int {
	r.t.Helper()
	n, err := strconv.Atoi(r.Text(`SELECT count(*) FROM public.`+function+`(ARRAY(
		SELECT id FROM public.cdc_relay_inbox_letter WHERE message_id = ANY ($1)))`, ids))
	r.must(err)
	return n
}

// letter is "state reason blocks" of a message's letter, "" when there is none.
func (r *runnerRig) letter(id string) string {
	r.t.Helper()
	return r.Text(`SELECT concat_ws(' ', state, reason, CASE WHEN blocks THEN 'blocks' END)
		FROM public.cdc_relay_inbox_letter WHERE message_id = $1`, id)
}

func (r *runnerRig) wantLetter(id, want string) {
	r.t.Helper()
	if got := r.letter(id); got != want {
		r.t.Errorf("the letter of message %s is %q, want %q", id, got, want)
	}
}

func (r *runnerRig) untilLetter(id, want string) {
	r.t.Helper()
	testenv.Until(r.t, runnerPatience, func(context.Context) error {
		if got := r.letter(id); got != want {
			return fmt.Errorf("the letter of message %s is %q, want %q", id, got, want)
		}
		return nil
	})
}

// outcome is how a message is settled, "" when it is not.
func (r *runnerRig) outcome(id string) string {
	r.t.Helper()
	return r.Text("SELECT outcome FROM public.cdc_relay_inbox WHERE message_id = $1", id)
}

func (r *runnerRig) wantOutcome(id, want string) {
	r.t.Helper()
	if got := r.outcome(id); got != want {
		r.t.Errorf("message %s is settled as %q, want %q", id, got, want)
	}
}

// effects are the messages that had one, in the order of their commits' handlers.
func (r *runnerRig) effects() string {
	r.t.Helper()
	return r.Text("SELECT string_agg(message_id, ' ' ORDER BY n) FROM effect")
}

func (r *runnerRig) wantEffects(want string) {
	r.t.Helper()
	if got := r.effects(); got != want {
		r.t.Errorf("effects of %q, want %q", got, want)
	}
}

// wantNoAttempt wants that no failure of the message is remembered.
func (r *runnerRig) wantNoAttempt(id string) {
	r.t.Helper()
	if got := r.Text("SELECT attempts FROM public.cdc_relay_inbox_attempt WHERE message_id = $1", id); got != "" {
		r.t.Errorf("message %s has %s attempts, want no row", id, got)
	}
}

// deliveries is an observer that remembers.
type deliveries struct {
	inbox.NopObserver

	mu     sync.Mutex
	all    []inbox.Delivery
	counts []inbox.Counts
	states []inbox.State
}

func (d *deliveries) Delivered(one inbox.Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

func (d *deliveries) Counted(c inbox.Counts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts = append(d.counts, c)
}

func (d *deliveries) Changed(s inbox.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states = append(d.states, s)
}

// breakers are the changes of the breaker, without those of the database.
func (d *deliveries) breakers() (open []bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.states {
		if len(open) == 0 || open[len(open)-1] != s.BreakerOpen {
			open = append(open, s.BreakerOpen)
		}
	}
	return open
}

// of are the deliveries for which keep says so, as "outcome/attempts/reason".
func (d *deliveries) of(keep func(inbox.Delivery) bool) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var text []string
	for _, one := range d.all {
		if keep(one) {
			text = append(text, strings.TrimSuffix(fmt.Sprintf("%v/%d/%s", one.Outcome, one.Attempts, one.Reason), "/"))
		}
	}
	return strings.Join(text, " ")
}

func replayed(d inbox.Delivery) bool { return d.Replayed }

func gapped(d inbox.Delivery) bool { return d.Gap }
