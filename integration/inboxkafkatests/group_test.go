package inboxkafkatests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxkafka"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Three members come and go under load: each event has one effect, in the order of its key.
func TestMembersComeAndGo(t *testing.T) {
	t.Parallel()
	const keys, rounds, each = 12, 6, 20
	r := newRig(t, 4)
	var leave [3]func()
	for round := range rounds {
		r.send(r.events(keys, round*each+1, (round+1)*each)...)
		who := round % len(leave)
		if leave[who] != nil {
			leave[who]()
		}
		leave[who] = r.member()
		r.until(keys * each * round) // and the last round is under way
	}
	r.until(keys * each * rounds)
	r.inOrder(keys, each*rounds)
}

// A member that leaves has committed what it has settled, so that nobody handles it again,
// and nothing past what it has not.
func TestLeavingCommits(t *testing.T) {
	t.Parallel()
	const keys, each = 5, 10
	r := newRig(t, 2)
	r.send(r.events(keys, 1, each)...)
	leave := r.member()
	r.until(keys * each)
	leave()
	var handled atomic.Int64
	r.send(r.events(keys, each+1, 2*each)...)
	r.Exec("DELETE FROM public.cdc_relay_inbox") // whoever handled one again would be seen
	r.member(func(c *inbox.Config, _ *inboxkafka.Config) {
		c.Handler = func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			handled.Add(1)
			return effect(ctx, tx, m)
		}
	})
	r.until(2 * keys * each)
	r.inOrder(keys, 2*each)
	if n := handled.Load(); n != keys*each {
		t.Errorf("%d events were handled after the change of members, want the %d new ones", n, keys*each)
	}
}

// Work that a rebalance finds under way is finished and committed before the partition is
// given back: a handler never runs for two members at once.
func TestRebalanceWaitsForTheHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.send(r.events(2, 1, 1)...)
	gate, running := make(chan struct{}), make(chan struct{}, 10)
	slow := func(c *inbox.Config, k *inboxkafka.Config) {
		k.DrainTimeout = 5 * time.Second
		c.Handler = func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			running <- struct{}{}
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
			return effect(ctx, tx, m)
		}
	}
	r.member(slow)
	<-running
	<-running
	r.member(slow)
	r.untilGroupIs("PreparingRebalance")
	select {
	case <-running:
		t.Error("a handler begins while those of the former owner run")
	case <-time.After(2 * time.Second): // less than they may take
	}
	close(gate)
	r.until(2)
	r.send(r.events(2, 2, 5)...)
	r.until(10)
	r.inOrder(2, 5)
}

// untilGroupIs waits until the broker says that the group is in a state.
func (r *rig) untilGroupIs(state string) {
	r.t.Helper()
	request := kmsg.NewPtrDescribeGroupsRequest()
	request.Groups = []string{r.topic}
	testenv.Until(r.t, patience, func(ctx context.Context) error {
		answer, err := request.RequestWith(ctx, r.client)
		if err != nil {
			return err
		}
		if got := answer.Groups[0].State; got != state {
			return fmt.Errorf("the group is %s, want %s", got, state)
		}
		return nil
	})
}

// Control records of transactions are no messages, records of aborted ones are not read,
// and a record without id is a dead letter, not a standstill.
func TestTransactionsAndOddRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	tx := r.producer(kgo.TransactionalID(r.topic))
	commit := func(how kgo.TransactionEndTry, records ...*kgo.Record) {
		t.Helper()
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := tx.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := tx.EndTransaction(t.Context(), how); err != nil {
			t.Fatal(err)
		}
	}
	commit(kgo.TryCommit, r.events(1, 1, 3)...)
	commit(kgo.TryAbort, r.events(1, 100, 103)...)
	commit(kgo.TryCommit, r.events(1, 4, 6)...)
	nameless := r.events(1, 200, 200)[0]
	nameless.Key, nameless.Headers = nil, nil
	tombstone := &kgo.Record{Topic: r.topic, Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("tombstone")}}}
	r.send(nameless, tombstone)
	r.send(r.events(1, 7, 8)...)
	var null atomic.Int64
	r.member(func(c *inbox.Config, _ *inboxkafka.Config) {
		c.Handler = func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
			if m.ID == "tombstone" {
				if m.Key != nil || m.Value != nil {
					return errors.New("a null is not nil")
				}
				null.Add(1)
				return nil
			}
			return effect(ctx, tx, m)
		}
	})
	r.until(8)
	r.inOrder(1, 8)
	testenv.Until(t, patience, func(context.Context) error { // beside the keys, in no order with them
		if got := r.Text("SELECT reason || ' ' || message_id FROM public.cdc_relay_inbox_letter"); !strings.HasPrefix(got, "no_id "+r.topic+"/0/") {
			return fmt.Errorf("the record without id is kept as %q", got)
		}
		if n := null.Load(); n != 1 {
			return fmt.Errorf("the tombstone was handled %d times", n)
		}
		return nil
	})
}

// A topic that does not exist yet is waited for, and one that keeps records for longer than
// the inbox remembers them is warned of.
func TestTopicThatComesLater(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.topic = r.Topic("later")
	r.member()
	testenv.Until(t, patience, func(context.Context) error {
		if !strings.Contains(r.log.String(), "waiting for topics") {
			return errors.New("it does not say what it waits for")
		}
		return nil
	})
	r.CreateTopic("later", 1, "retention.ms", "-1")
	r.send(r.events(1, 1, 2)...)
	r.until(2)
	if s := r.log.String(); !strings.Contains(s, "keeps records for longer") {
		t.Errorf("nothing is said of the retention:\n%s", s)
	}
}

// Records that were deleted before the group read them are said to be missing; what comes
// after them is handled.
func TestDeletedBeforeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.send(r.events(1, 1, 2)...)
	leave := r.member()
	r.until(2)
	leave()
	r.send(r.events(1, 3, 9)...)
	if err := deleteRecords(t.Context(), r.client, r.topic, 7); err != nil {
		t.Fatal(err)
	}
	r.member()
	r.until(4)
	if got := r.Text("SELECT string_agg(n::text, ' ' ORDER BY id) FROM public.effect"); got != "1 2 8 9" {
		t.Errorf("effects of %s", got)
	}
	if s := r.log.String(); !strings.Contains(s, "records were deleted before this group had read them") || !strings.Contains(s, "from=2 to=6") {
		t.Errorf("what is missing is not said:\n%s", s)
	}
}
