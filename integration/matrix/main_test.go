// Package matrix_test is the short account of what happens when something fails: one row for each failure, on real
// servers and with the real relay and consumers, each with the state that is left and what happens next.
package matrix_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/consumer"
	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/scene"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

func TestMain(m *testing.M) {
	if code, was := consumer.Main(); was {
		os.Exit(code)
	}
	os.Exit(testenv.Main(m))
}

// patience is how long something may take that is bound to happen.
const patience = 40 * time.Second

// stage is what all rows share: a broker, reached directly or through a proxy.
type stage struct{ testenv.Cluster }

func TestFailureMatrix(t *testing.T) {
	st := newStage(t)
	for _, row := range []struct {
		name string
		run  func(*testing.T, *stage)
	}{
		{"commit_fails_nothing_published", commitFails},
		{"writer_killed_before_commit_nothing_published", writerKilled},
		{"crash_after_commit_before_publish", crashBeforePublish},
		{"broker_down_backoff_then_recovers", brokerDown},
		{"crash_after_publish_before_confirm", crashBeforeConfirm},
		{"two_relay_instances", twoInstances},
		{"slow_broker_memory_bounded_and_age_visible", slowBroker},
		{"oversize_or_invalid_row_is_dead_lettered", rowIsDeadLettered},
		{"broker_down_dead_letters_after_max_attempts", deadLettersAfterMaxAttempts},
		{"dead_letter_replay_is_idempotent", replayIsIdempotent},
		{"recovered_broker_does_not_get_the_dead_letter", recoveredBroker},
		{"store_failure_halts_and_keeps_the_position", storeFailure},
		{"consumer_crash_before_commit_processed_once", crashBeforeCommit},
		{"same_message_twice_in_parallel_one_effect", sameMessageTwice},
		{"poison_message_dead_lettered_at_max_deliveries", poisonMessage},
		{"transient_failure_redelivered_once_then_ok", transientFailure},
		{"effect_and_inbox_row_are_atomic", effectAndInboxRow},
		{"two_consumers_same_message_each_once", twoConsumers},
		{"two_relays_one_effect", twoRelays},
		{"slow_consumer_backlog_age_is_visible", slowConsumer},
		{"out_of_order_versions_parked_then_applied", outOfOrderVersions},
		{"one_key_blocked_others_flow", oneKeyBlocked},
	} {
		t.Run(row.name, func(t *testing.T) { row.run(t, st) })
	}
}

func newStage(t *testing.T) *stage {
	t.Helper()
	st := &stage{}
	t.Cleanup(func() { _ = st.Close() })
	// A consumer that was killed keeps its partition for the time of its session.
	st.Start(t, localstack.KafkaConfig{Properties: map[string]string{"group.min.session.timeout.ms": "1000"}})
	return st
}

// proxied leads a relay to the broker through the proxy.
func (st *stage) proxied() testenv.Settings {
	return testenv.Settings{"kafka.brokers": []string{st.Proxy().Addr()}}
}

// play is one row at work: a database with an outbox and a topic of one partition.
type play struct {
	*scene.Scene
	t     *testing.T
	topic string
}

func newPlay(t *testing.T, st *stage) *play {
	t.Helper()
	p := &play{Scene: scene.New(t, st.Kafka.Addrs()), t: t}
	p.topic = p.Topic("order")
	return p
}

// start runs a relay and waits until it is ready.
func (p *play) start(opts testenv.RelayOptions) *testenv.Relay {
	p.t.Helper()
	opts.Args = append(opts.Args, "--init")
	r := p.StartRelay(opts)
	r.WaitReady(patience)
	return r
}

// insert commits rows of one key and returns a position within their transaction.
func (p *play) insert(values ...string) (within string) {
	p.t.Helper()
	return p.Insert("order", "key", values...)
}

// published checks that the topic holds exactly these values in this order, copies of one row under one message id.
func (p *play) published(want ...string) {
	p.t.Helper()
	if n := p.Count(p.topic); n != len(want) {
		p.t.Errorf("the topic holds %d records, want %d", n, len(want))
	}
	records := p.Consume(p.topic, len(want), patience)
	if got := scene.Values(records); !slices.Equal(got, want) {
		p.t.Errorf("the topic holds %q, want %q", got, want)
	}
	ids := map[string]string{}
	for _, r := range records {
		id, _ := r.Header("id")
		if known := ids[string(r.Value)]; id == "" || known != "" && known != id {
			p.t.Errorf("%s has the message ids %q and %q", r.Value, known, id)
		}
		ids[string(r.Value)] = id
	}
}

// until waits until a metric of the relay has a value.
func (p *play) until(r *testenv.Relay, metric string, want func(float64) bool) {
	p.t.Helper()
	testenv.Until(p.t, patience, func(context.Context) error {
		if got := scene.Metric(p.t, r, metric); !want(got) {
			return fmt.Errorf("%s is %v", metric, got)
		}
		return nil
	})
}

// is returns the condition that a metric has the value.
func is(want float64) func(float64) bool { return func(got float64) bool { return got == want } }

// arrived waits until the topic holds n records.
func (p *play) arrived(n int) {
	p.t.Helper()
	testenv.Until(p.t, patience, func(context.Context) error {
		if got := p.Count(p.topic); got != n {
			return fmt.Errorf("the topic holds %d records, want %d", got, n)
		}
		return nil
	})
}
