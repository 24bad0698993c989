package matrix_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/process"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// session is the shortest session that consumers of these rows may have: how long the group waits for one that is dead.
const session = 1500 * time.Millisecond

// audience is one row at work: a topic of one partition, and the database of its consumers' effects.
type audience struct {
	*scene.Scene
	t      *testing.T
	conn   *pgx.Conn
	pool   *pgxpool.Pool
	client *kgo.Client
	topic  string
}

func newAudience(t *testing.T, st *stage) *audience {
	t.Helper()
	a := &audience{Scene: scene.New(t, st.Kafka.Addrs()), t: t}
	a.conn = a.Conn()
	consumer.Prepare(t, a.conn)
	config, err := pgxpool.ParseConfig(a.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 24
	if a.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.pool.Close)
	if a.client, err = kgo.NewClient(kgo.SeedBrokers(a.Brokers...)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.client.Close)
	a.topic = a.CreateTopic("order", 1)
	return a
}

// record is what a relay writes: the id in a header, and others.
func (a *audience) record(id, key, value string, headers ...string) *kgo.Record {
	r := &kgo.Record{Topic: a.topic, Key: []byte(key), Value: []byte(value)}
	for i, headers := 0, append([]string{"id", id}, headers...); i+1 < len(headers); i += 2 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

// send writes records.
func (a *audience) send(records ...*kgo.Record) {
	a.t.Helper()
	if err := a.client.ProduceSync(a.t.Context(), records...).FirstErr(); err != nil {
		a.t.Fatal(err)
	}
}

// event is the payload of the n-th event of a key.
func event(n int) string { return fmt.Sprintf(`{"n":%d}`, n) }

// events are the events from to to of a key; their ids are KEY-N.
func (a *audience) events(key string, from, to int) (all []*kgo.Record) {
	for n := from; n <= to; n++ {
		all = append(all, a.record(key+"-"+strconv.Itoa(n), key, event(n)))
	}
	return all
}

// effect is the handler that writes the effect of an event.
func effect(name string) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
		var e consumer.Event
		if err := json.Unmarshal(m.Value, &e); err != nil {
			return errors.New("the payload is no event")
		}
		return consumer.Write(ctx, tx, consumer.Effect{Consumer: name, MessageID: m.ID, Key: string(m.Key), N: e.N})
	}
}

// listener is a consumer within this process.
type listener struct {
	*witness
	t    *testing.T
	p    *inbox.Processor
	stop context.CancelFunc
	done chan error
	log  *process.Output
}

// listen starts a consumer whose group has its name.
func (a *audience) listen(cfg inbox.Config, kafka inboxkafka.Config) *listener {
	a.t.Helper()
	l := a.processor(cfg)
	kafka.Brokers, kafka.Topics = a.Brokers, []string{a.topic}
	kafka.Group = a.group(cfg.Consumer)
	kafka.Observer = l.witness
	kafka.Logger = slog.New(slog.NewTextHandler(l.log, nil))
	kafka.SessionTimeout = cmp.Or(kafka.SessionTimeout, session)
	kafka.CommitInterval = cmp.Or(kafka.CommitInterval, 50*time.Millisecond)
	ctx, stop := context.WithCancel(context.WithoutCancel(a.t.Context()))
	l.stop = stop
	go func() { l.done <- inboxkafka.Run(ctx, kafka, l.p) }()
	a.t.Cleanup(l.end)
	return l
}

// group is the group of a consumer: groups are shared by all tests, consumers are not.
func (a *audience) group(name string) string { return a.Topic(name) }

// processor makes a consumer that reads nothing by itself.
func (a *audience) processor(cfg inbox.Config) *listener {
	a.t.Helper()
	l := &listener{t: a.t, witness: &witness{}, done: make(chan error, 1), log: &process.Output{}}
	cfg.Pool, cfg.Observer = a.pool, l.witness
	cfg.Logger = slog.New(slog.NewTextHandler(l.log, nil))
	cfg.PollInterval = cmp.Or(cfg.PollInterval, 100*time.Millisecond)
	if cfg.Backoff == (inbox.Backoff{}) {
		cfg.Backoff = inbox.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond}
	}
	if cfg.Handler == nil {
		cfg.Handler = effect(cfg.Consumer)
	}
	var err error
	if l.p, err = inbox.New(cfg); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		if a.t.Failed() {
			a.t.Logf("%s printed:\n%s", cfg.Consumer, process.Tail(l.log.String()))
		}
	})
	return l
}

// end stops the consumer in order, at the first call.
func (l *listener) end() {
	l.t.Helper()
	if l.stop == nil {
		return
	}
	l.stop()
	l.stop = nil
	select {
	case err := <-l.done:
		if err != nil && !errors.Is(err, context.Canceled) {
			l.t.Errorf("the consumer ends with %v", err)
		}
	case <-time.After(patience):
		l.t.Errorf("the consumer does not end:\n%s", process.Tail(l.log.String()))
	}
}

// quiet checks that the consumer has logged no warning and no error.
func (l *listener) quiet() {
	l.t.Helper()
	for line := range strings.Lines(l.log.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			l.t.Errorf("logged: %s", line)
		}
	}
}

// witness keeps what consumers tell their observers.
type witness struct {
	inbox.NopObserver

	mu         sync.Mutex
	deliveries []inbox.Delivery
	backlog    backlog
}

// backlog is what was last said of the records of a partition that are not settled.
type backlog struct {
	lag    int64
	oldest time.Time
}

func (w *witness) Delivered(d inbox.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliveries = append(w.deliveries, d)
}

// Backlog, Rebalanced and Committed are inboxkafka's.
func (w *witness) Backlog(_ string, _ int, lag int64, oldest time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backlog = backlog{lag, oldest}
}

// outcomes are those of the deliveries so far.
func (w *witness) outcomes() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, d := range w.deliveries {
		all = append(all, d.Outcome.String())
	}
	return strings.Join(all, " ")
}

func (w *witness) lastBacklog() backlog {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.backlog
}

// committed is the offset that a consumer's group has committed, -1 without any.
func (a *audience) committed(ctx context.Context, name string) (int64, error) {
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = a.group(name)
	topic := kmsg.NewOffsetFetchRequestTopic()
	topic.Topic, topic.Partitions = a.topic, []int32{0}
	request.Topics = append(request.Topics, topic)
	of := kmsg.NewOffsetFetchRequestGroup()
	of.Group = request.Group
	ofTopic := kmsg.NewOffsetFetchRequestGroupTopic()
	ofTopic.Topic, ofTopic.Partitions = a.topic, []int32{0}
	of.Topics = append(of.Topics, ofTopic)
	request.Groups = append(request.Groups, of)
	response, err := request.RequestWith(ctx, a.client)
	if err != nil {
		return 0, err
	}
	if len(response.Groups) == 1 {
		g := response.Groups[0]
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return 0, err
		}
		if len(g.Topics) == 1 && len(g.Topics[0].Partitions) == 1 {
			p := g.Topics[0].Partitions[0]
			return p.Offset, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return 0, fmt.Errorf("the answer has no offset: %+v", response)
}

// hasCommitted waits until a consumer's group has committed the offset.
func (a *audience) hasCommitted(name string, want int64) {
	a.t.Helper()
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		got, err := a.committed(ctx, name)
		if err == nil && got > want { // It does not come back.
			a.t.Fatalf("%s has committed %d, want %d", name, got, want)
		}
		if err == nil && got != want {
			err = fmt.Errorf("%s has committed %d, want %d", name, got, want)
		}
		return err
	})
}

// hasNotCommitted checks that a consumer's group has committed no offset past that one.
func (a *audience) hasNotCommitted(name string, past int64) {
	a.t.Helper()
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		got, err := a.committed(ctx, name)
		if err == nil && got > past {
			a.t.Errorf("%s has committed %d, and what comes after %d is not settled", name, got, past)
		}
		return err
	})
}

// effects are those of a consumer, in order, as KEY-N.
func (a *audience) effects(name string) (all []string) {
	a.t.Helper()
	effects, err := consumer.Effects(a.t.Context(), a.conn, name)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, e := range effects {
		all = append(all, e.Key+"-"+strconv.FormatInt(e.N, 10))
	}
	return all
}

// has checks the effects of a consumer.
func (a *audience) has(name string, want ...string) {
	a.t.Helper()
	if got := a.effects(name); !slices.Equal(got, want) {
		a.t.Errorf("the effects of %s are %q, want %q", name, got, want)
	}
}

// gets waits until a consumer has these effects.
func (a *audience) gets(name string, want ...string) {
	a.t.Helper()
	testenv.Until(a.t, patience, func(context.Context) error {
		if got := a.effects(name); !slices.Equal(got, want) {
			return fmt.Errorf("the effects of %s are %q, want %q", name, got, want)
		}
		return nil
	})
}

// inbox are the settled messages of a consumer as ID=OUTCOME, by id.
func (a *audience) inbox(name string) string {
	a.t.Helper()
	return a.Text(`SELECT string_agg(message_id || '=' || outcome, ' ' ORDER BY message_id) FROM public.cdc_relay_inbox
		WHERE consumer = $1`, name)
}

// settled waits until the inbox reads so.
func (a *audience) settled(name, want string) {
	a.t.Helper()
	testenv.Until(a.t, patience, func(context.Context) error {
		got := a.inbox(name)
		for message := range strings.FieldsSeq(got) {
			if id, _, _ := strings.Cut(message, "="); !strings.Contains(" "+want, " "+id+"=") {
				a.t.Fatalf("%s is settled, and the inbox of %s is to be %q", id, name, want)
			}
		}
		if got != want {
			return fmt.Errorf("the inbox of %s is %q, want %q", name, got, want)
		}
		return nil
	})
}

// letters are the letters of a consumer as ID:STATE:REASON:DELIVERIES, in order.
func (a *audience) letters(name string) string {
	a.t.Helper()
	return a.Text(`SELECT string_agg(concat_ws(':', message_id, state, reason, deliveries), ' ' ORDER BY id)
		FROM public.cdc_relay_inbox_letter WHERE consumer = $1`, name)
}

// attempts are the failed deliveries that are counted of messages that are not settled, as ID:N.
func (a *audience) attempts(name string) string {
	a.t.Helper()
	return a.Text(`SELECT string_agg(message_id || ':' || attempts, ' ' ORDER BY message_id)
		FROM public.cdc_relay_inbox_attempt WHERE consumer = $1`, name)
}

// is checks one of those texts.
func (a *audience) is(what, got, want string) {
	a.t.Helper()
	if got != want {
		a.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// becomes waits until one of those texts is as wanted.
func (a *audience) becomes(what string, get func() string, want string) {
	a.t.Helper()
	testenv.Until(a.t, patience, func(context.Context) error {
		if got := get(); got != want {
			return fmt.Errorf("%s: got %q, want %q", what, got, want)
		}
		return nil
	})
}

// replay gives dead letters of a consumer back to it, and returns how many were dead.
func (a *audience) replay(name string) string {
	a.t.Helper()
	return a.Text(`SELECT count(*) FROM public.cdc_inbox_replay(
		(SELECT array_agg(id) FROM public.cdc_relay_inbox_letter WHERE consumer = $1))`, name)
}
